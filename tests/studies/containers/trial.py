"""What is tried of the stack, in order: each a row of what was seen."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import socket
import ssl
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.infra.stack.stack_processes import status_of
from tests.studies.containers.composed import METRICS, PROFILES, SERVICE, ComposedStack
from tests.studies.containers.receiver import Receiver
from tests.studies.containers.seen import ResultLog, Row, TrialFailed
from tests.studies.containers.stack import MLFLOW, PREFECT
from tests.studies.containers.trying import went_well

COMMITS = ["1" * 40, "2" * 40, "3" * 40]
_LONG_RUNNING = ("postgres", "minio", "prefect", "mlflow", "control", "build")


def try_all(stack: ComposedStack, seen: ResultLog, receiver: Receiver) -> None:
    """Bring it up, try everything, and take it down, whatever went wrong before."""
    try:
        for what, attempt in _steps(stack, receiver).items():
            if not went_well(seen, what, attempt) and what in _NEEDED:
                break
    finally:
        went_well(seen, "`compose down --volumes`", partial(_down, stack))


_UP, _RELEASED = "`compose up --detach --wait`", "a first release, by `handoff notify --wait`"
# Without these there is nothing to try.
_NEEDED = frozenset({_UP, _RELEASED})


def _steps(stack: ComposedStack, receiver: Receiver) -> dict[str, Callable[[Row], None]]:
    return {
        _UP: partial(_up, stack),
        "containers and volumes": partial(_containers, stack),
        "logins of both servers": partial(_logins, stack),
        "`handoff doctor` in the worker": partial(_doctor, stack),
        _RELEASED: partial(_first, stack),
        "pulled and verified outside": partial(_pull, stack, version=1),
        "links in MLflow": partial(_links, stack),
        "profiles `metrics`, `tell`, `tls` up": partial(_profiles, stack, receiver),
        "a second release, of a new commit": partial(_second, stack),
        "profile `metrics`: what it answers": partial(_metrics, stack),
        "profile `tell`: a refused release": partial(_notified, stack, receiver),
        "profile `tls`: both servers by their names": partial(_tls, stack),
        "`prefect` killed": partial(_killed, stack, "prefect"),
        "`mlflow` killed": partial(_killed, stack, "mlflow"),
        "`build` killed": partial(_killed, stack, "build"),
        "`compose stop build` during a release": partial(_drain, stack),
        "`compose down`, and `up` again": partial(_again, stack),
    }


def _up(stack: ComposedStack, row: Row) -> None:
    stack.compose("up", "--detach", "--wait", "--no-build", "--wait-timeout=900", limit_s=960)
    for service in _LONG_RUNNING:
        health = stack.container(service)["State"]["Health"]["Status"]
        row.require(health == "healthy", f"{service} is {health}")
    row.note(f"{', '.join(_LONG_RUNNING)} are healthy")


def _containers(stack: ComposedStack, row: Row) -> None:
    for one in stack.containers():
        name, state = one["Config"]["Labels"][SERVICE], one["State"]
        description = (
            f"{name} {state['Status']} {state['ExitCode']}, restarted {one['RestartCount']}"
        )
        row.require(state["Status"] == "running" or state["ExitCode"] == 0, description)
        row.require(one["RestartCount"] == 0, description)
        row.require(one["HostConfig"]["ReadonlyRootfs"], f"{name} may write into its root")
        row.require(one["HostConfig"]["CapDrop"] == ["ALL"], f"{name} keeps capabilities")
        volumes = [str(mount.get("Name", "")) for mount in one["Mounts"]]
        anonymous = [volume for volume in volumes if re.fullmatch("[0-9a-f]{64}", volume)]
        row.require(not anonymous, f"{name} has a volume without a name")
    names = stack.engine.docker("volume", "ls", "--quiet").split()
    count = len(stack.containers())
    row.note(f"{count} containers, none was restarted; {len(names)} volumes, all with names")


def _logins(stack: ComposedStack, row: Row) -> None:
    values = stack.values
    for name, address, login in (
        ("Prefect", f"{PREFECT}/api/admin/version", f"handoff:{values['PREFECT_PASSWORD']}"),
        ("MLflow", f"{MLFLOW}/api/2.0/mlflow/experiments/search?max_results=1",
         f"handoff:{values['MLFLOW_PASSWORD']}"),
    ):  # fmt: skip
        answers = [status_of(address, one)[0] for one in ("", "handoff:wrong", login)]
        row.require(answers == [401, 401, 200], f"{name} answered {answers}")
        row.note(f"{name} 401 without, 401 with a wrong one, 200 with it")


def _doctor(stack: ComposedStack, row: Row) -> None:
    printed = stack.in_container("build", "handoff", "doctor")
    for word in ("Landlock", "g++"):
        lines = [line.strip() for line in printed.splitlines() if word.lower() in line.lower()]
        row.require(lines, f"it says nothing of {word}")
        row.note(" ".join(lines[0].split())[:100])


def _first(stack: ComposedStack, row: Row) -> None:
    source = stack.deliver("first", seed=0, width=32)
    with _asking_mlflow(stack) as calls:
        _release(stack, source, COMMITS[0], row)
    row.require(stack.versions() == 1, f"{stack.versions()} versions are registered")
    idle, busy = calls
    row.note(
        f"version 1; MLflow's logins meanwhile {statistics.median(busy):.1f} s, {max(busy):.1f} s "
        f"at most (idle {statistics.median(idle):.1f} s)"
    )


def _release(stack: ComposedStack, source: str, commit: str, row: Row) -> None:
    row.note(f"released in {stack.release(source, commit):.0f} s")


@contextmanager
def _asking_mlflow(stack: ComposedStack) -> Iterator[tuple[list[float], list[float]]]:
    """Have what MLflow is asked for take its time: ten times idle, and then while this lasts."""

    def ask() -> float:
        began = time.monotonic()
        stack.ask_mlflow("experiments/search?max_results=1")
        return time.monotonic() - began

    idle, busy, is_over = [ask() for _ in range(10)], [ask()], threading.Event()
    refused: list[TrialFailed] = []

    def go_on() -> None:
        while not is_over.wait(1.0):
            try:
                busy.append(ask())
            except TrialFailed as failure:
                refused.append(failure)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield idle, busy
    finally:
        is_over.set()
        thread.join()
    if refused:
        raise TrialFailed(
            f"{len(refused)} of {len(busy) + len(refused)} calls to MLflow: {refused[0]}"
        )


def _pull(stack: ComposedStack, row: Row, version: int) -> None:
    folder = stack.client_folder / f"pulled-{version}-{time.time():.0f}"
    name = f"toy@{version}"
    stack.handoff("pull", name, "--to", str(folder))
    stack.handoff("verify", str(folder))
    row.note(f"version {version}: signature and digests are right")
    foreign = stack.client_folder / "another.pub"
    key = stack.engine.log.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt",
                                "ec_paramgen_curve:P-256"])  # fmt: skip
    made = subprocess.run(
        ["openssl", "pkey", "-pubout"], input=key, capture_output=True, text=True, check=True
    )
    foreign.write_text(made.stdout, "utf-8")
    stack.handoff("pull", name, "--verify-only", trusted=foreign, expected=6)
    row.note("with another key trusted it is refused (6)")


def _links(stack: ComposedStack, row: Row) -> None:
    text = json.dumps(stack.ask_mlflow("model-versions/search?max_results=10"))
    text += json.dumps(stack.ask_mlflow("registered-models/search?max_results=10"))
    pages = stack.values["PREFECT_PAGES"]
    links = re.findall(r"https?://[\w.:-]+", text)
    row.require("http://prefect:4200" not in links, "they lead to http://prefect:4200")
    row.require(pages in links, f"none leads to {pages}: {sorted(set(links))}")
    row.note(f"they lead to {pages}")


def _profiles(stack: ComposedStack, receiver: Receiver, row: Row) -> None:
    stack.make_block(receiver.address)
    words = [f"--profile={name}" for name in PROFILES]
    stack.compose(*words, "up", "--detach", "--wait", "--no-build", "--wait-timeout=600")
    for name in PROFILES:
        row.note(f"{name} {stack.container(name)['State']['Health']['Status']}")


def _second(stack: ComposedStack, row: Row) -> None:
    _release(stack, stack.deliver("second", seed=1, width=32), COMMITS[1], row)
    row.require(stack.versions() == 2, f"{stack.versions()} versions are registered")
    runs = len(stack.release_runs())
    stack.handoff("notify", "--delivery", "s3://handoff/in/second", "--commit", COMMITS[1],
                  "--wait")  # fmt: skip
    row.require(len(stack.release_runs()) == runs, "the same commit made another run")
    row.note("version 2; the same commit once more makes no run")


def _metrics(stack: ComposedStack, row: Row) -> None:
    status, answer = status_of(METRICS)
    row.require(status == 200, f"it answered {status}")
    text = answer.decode("utf-8")
    row.require('handoff_versions{model="toy"} 2.0' in text, "it doesn't know both versions")
    for name in ("handoff_versions", "handoff_workers_online", "handoff_flow_runs"):
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        row.require(lines, f"it has no {name}")
        row.note(f"`{lines[0]}`")
    down = [line for line in text.splitlines() if re.match(r"handoff_source_up\{.*\} 0", line)]
    row.require(not down, f"sources can't be read: {down}")


def _notified(stack: ComposedStack, receiver: Receiver, row: Row) -> None:
    """Have a release refused: its people are notified through a block of Prefect's."""
    commit = "4" * 40
    stack.handoff("notify", "--delivery", f"s3://{stack.values['S3_BUCKET']}/in/nothing",
                  "--commit", commit, "--model", "toy", "--wait", expected=3)  # fmt: skip
    deadline = time.monotonic() + 120
    while not (messages := [text for text in receiver.taken if commit[:7] in text]):
        if time.monotonic() > deadline:
            raise TrialFailed(f"nothing was told of it: {receiver.taken}")
        time.sleep(1)
    sentence = str(json.loads(messages[0])["text"]).splitlines()[0]
    row.note(f"a delivery that isn't there is refused (3), and told: *{sentence}*")


def _tls(stack: ComposedStack, row: Row) -> None:
    place = "/data/caddy/pki/authorities/local/root.crt"
    believed = ssl.create_default_context(cadata=stack.in_container("tls", "cat", place))
    requests = {
        "PREFECT": ("/api/admin/version", "PREFECT_PASSWORD"),
        "MLFLOW": ("/api/2.0/mlflow/experiments/search?max_results=1", "MLFLOW_PASSWORD"),
    }
    for server, (path, password) in requests.items():
        name = stack.values[f"{server}_NAME"]
        login = base64.b64encode(f"handoff:{stack.values[password]}".encode()).decode()
        status = _status_by_name(name, path, believed, {"Authorization": f"Basic {login}"})
        row.require(status == 200, f"https://{name} answered {status}")
        row.note(f"https://{name} {status}, by a certificate of Caddy's own authority")


def _status_by_name(name: str, path: str, believed: ssl.SSLContext, headers: dict[str, str]) -> int:
    """Ask the front on this machine by a name that nobody looks up here."""
    plain = socket.create_connection(("127.0.0.1", 443), timeout=30)
    connection = http.client.HTTPSConnection(name, timeout=30)
    connection.sock = believed.wrap_socket(plain, server_hostname=name)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def _killed(stack: ComposedStack, service: str, row: Row) -> None:
    """Kill the container's first process, as the kernel would: `docker kill` counts as a stop."""
    before = stack.container(service)
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while stack.container(service)["RestartCount"] <= before["RestartCount"]:
        if time.monotonic() > deadline:
            raise TrialFailed(f"{service} was not started again")
        time.sleep(0.5)
    row.note(f"started again by the engine, healthy after {stack.wait_healthy(service):.0f} s")
    for name in ("control", "build"):
        stack.wait_healthy(name)
        restarts = stack.container(name)["RestartCount"]
        row.note(f"{name} restarted {restarts} times so far")


def _drain(stack: ComposedStack, row: Row) -> None:
    source = stack.deliver("third", seed=2, width=48)
    stack.handoff("notify", "--delivery", source, "--commit", COMMITS[2], )  # fmt: skip
    deadline = time.monotonic() + 300
    while not stack.in_container("build", *_FLOW_RUNS).strip():
        if time.monotonic() > deadline:
            raise TrialFailed("the build worker didn't take the release")
        time.sleep(2)
    stack.in_container("control", "prefect", "work-pool", "pause", "handoff-build")
    began = time.monotonic()
    stack.compose("stop", "build", limit_s=1500)
    waited = time.monotonic() - began
    state = stack.release_runs()[0]["state"]
    exit_code = stack.container("build")["State"]["ExitCode"]
    row.note(f"it waited {waited:.0f} s")
    row.require(state["type"] == "COMPLETED", f"the release is {state['type']}: {state['message']}")
    row.require(stack.versions() == 3, f"{stack.versions()} versions are registered")
    row.note(f"the release ended well, version 3; the worker's exit code {exit_code}")
    stack.compose("start", "build")
    stack.in_container("control", "prefect", "work-pool", "resume", "handoff-build")
    row.note(f"started again, healthy after {stack.wait_healthy('build'):.0f} s")


# What the image has no `pgrep` for: the processes of flow runs, as prepare.py finds them.
_FLOW_RUNS = (
    "python", "-c",
    "import sys; sys.path.insert(0, '/opt/handoff/infra/containers'); import prepare; "
    "print(*prepare._flow_runs_here())",
)  # fmt: skip


def _again(stack: ComposedStack, row: Row) -> None:
    def state() -> tuple[int, list[str], str]:
        runs = sorted(run["id"] for run in stack.release_runs())
        return stack.versions(), runs, stack.handoff("history", "toy", "--json")

    before = state()
    stack.keep_logs()
    words = [f"--profile={name}" for name in PROFILES]
    stack.compose(*words, "down", "--timeout=60")
    row.require(not stack.engine.docker("ps", "--all", "--quiet").strip(), "containers are left")
    began = time.monotonic()
    stack.compose("up", "--detach", "--wait", "--no-build", "--wait-timeout=900", limit_s=960)
    row.note(f"up again in {time.monotonic() - began:.0f} s")
    row.require(state() == before, f"it was {before}, and is {state()}")
    row.note(f"{before[0]} versions, {len(before[1])} runs and the ledger are as they were")
    shown = stack.ask_mlflow("model-versions/search?max_results=10")["model_versions"]
    row.require(len(shown) == before[0], f"MLflow shows {len(shown)} versions")
    _pull(stack, row, version=3)


def _down(stack: ComposedStack, row: Row) -> None:
    stack.keep_logs()
    stack.compose("--profile=*", "down", "--volumes", "--timeout=20")
    for kind, listed in (
        ("containers", ("ps", "--all", "--quiet")), ("volumes", ("volume", "ls", "--quiet")),
        ("networks", ("network", "ls", "--quiet", "--filter", "name=handoff")),
    ):  # fmt: skip
        left = stack.engine.docker(*listed).split()
        row.require(not left, f"{kind} are left: {left}")
    row.note("no container, volume or network is left")
