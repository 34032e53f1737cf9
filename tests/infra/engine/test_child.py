"""Step processes: whatever happens in one is a result here."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import BudgetSpent, DeliveryUnreadable, StepCrashed, UsageProblem
from handoff.artifacts.host import Stores
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.statement import release_files
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.deliver.messages import DeliverJob
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.registry.messages import LookUpJob, LookUpResult, UploadJob
from handoff.tasks.verify.messages import VerifyJob
from tests.artifacts.samples import write_release
from tests.tasks.deliveries import write_delivery


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StepProcess]:
    """A bare step process."""
    started = StepProcess(ProcessPlan("bare", writes=(tmp_path,)), tmp_path / "logs" / "bare.log")
    yield started
    started.close()


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[StepProcess]:
    """One that is forked with torch in, which a factory's step imports: it takes seconds."""
    plan = ProcessPlan("graph", ("intake",), writes=(tmp_path,))
    started = StepProcess(plan, tmp_path / "logs" / "graph.log")
    yield started
    started.close()


@pytest.fixture(autouse=True)
def others() -> set[int]:
    """The children of the test run that are none of the test's: a server of other tests, say."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def children(others: set[int]) -> list[psutil.Process]:
    """Return the children that the test has started."""
    return [child for child in psutil.Process().children() if child.pid not in others]


def is_running(pid: int) -> bool:
    """Return whether a process does something still; one that nobody has reaped yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def has_ended(pid: int) -> bool:
    """Return whether a process ends; one that was killed may need a moment."""
    deadline = time.monotonic() + 10.0
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_running(pid)


def look_up(home: Path) -> LookUpJob:
    """Return a job that needs no torch and answers at once: nothing is registered in `home`."""
    stores = Stores(str(home / "store"), f"sqlite:///{home / 'none.db'}")
    return LookUpJob(
        "toy", digest_bytes(b"nothing"), stores, "candidate", digest_bytes(b""), Recipe(), "g++"
    )


def delivering(tmp_path: Path, body: str) -> DeliverJob:
    """Return a job whose factory is `body`: the one step that runs a team's own code."""
    (tmp_path / "factory.py").write_text("def build():\n" + textwrap.indent(body, "    "))
    return DeliverJob("factory:build", tmp_path, tmp_path / "out")


def test_a_step_gives_its_result(process: StepProcess, tmp_path: Path) -> None:
    assert process.run(look_up(tmp_path), limit_s=60) == LookUpResult(None)


def test_a_step_tells_what_it_took_in_its_process_without_the_wait_for_it(
    process: StepProcess, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = process.submit(look_up(tmp_path), limit_s=60).result()
    assert done.result == LookUpResult(None)
    # The process was started a moment ago, and imports before it takes a job.
    assert 0 < done.seconds < time.monotonic() - began


def test_what_is_imported_later_is_there_for_the_next_job_and_what_is_not_there_harms_none(
    others: set[int], tmp_path: Path
) -> None:
    later = ("registry.none_such", "registry.catalogue")
    for modules, has_mlflow in (((), False), (later, True)):
        plan = ProcessPlan("register", later=modules, sees="stores")
        with closing(StepProcess(plan, tmp_path / "logs" / "register.log")) as process:
            for _ in range(2):
                assert process.run(look_up(tmp_path), limit_s=60) == LookUpResult(None)
            (child,) = children(others)
            # By what MLflow loads.
            assert any("/numpy/" in one.path for one in child.memory_maps()) is has_mlflow


def test_a_renewed_process_ends_after_its_jobs_and_the_next_one_has_another(
    process: StepProcess, tmp_path: Path
) -> None:
    pids = []
    for number in range(2):
        running = process.submit(look_up(tmp_path / str(number)), limit_s=60)
        process.renew()
        assert running.result().result == LookUpResult(None)
        pids.append(process._process.pid)
    assert pids[0] is not None
    assert has_ended(pids[0])
    assert pids[0] != pids[1]


def test_a_refusal_crosses_the_border_with_all_its_parts(
    process: StepProcess, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DeliveryUnreadable, match=r"expected .* got .*") as caught:
        process.run(IntakeJob(empty, tmp_path / "staging"), limit_s=60)
    assert caught.value.exit_code == 3
    assert caught.value.remedy


def test_a_signal_is_a_crash_that_names_it_and_the_next_job_runs(
    process: StepProcess, tmp_path: Path
) -> None:
    job = delivering(tmp_path, "import ctypes\nctypes.string_at(0)\n")
    with pytest.raises(StepCrashed, match="SIGSEGV"):
        process.run(job, limit_s=60)
    assert process.run(look_up(tmp_path), limit_s=60) == LookUpResult(None)


@pytest.mark.parametrize(
    ("end", "message"),
    [("os.kill(os.getpid(), 40)", "got signal 40;"), ("os._exit(0)", "got exit status 0;")],
)
def test_an_end_without_a_name_is_a_crash_too(
    forked: StepProcess, tmp_path: Path, end: str, message: str
) -> None:
    with pytest.raises(StepCrashed, match=message):
        forked.run(delivering(tmp_path, f"import os\n{end}\n"), limit_s=60)


def test_a_crash_is_noticed_though_a_fork_lives_on_and_the_fork_is_ended(
    forked: StepProcess, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    job = delivering(
        tmp_path,
        "import os, pathlib, signal, time\n"
        "fork = os.fork()\n"
        "if fork == 0:\n"
        "    time.sleep(600)\n"
        f"pathlib.Path({str(note)!r}).write_text(str(fork))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    with pytest.raises(StepCrashed, match="SIGKILL") as caught:
        forked.run(job, limit_s=120)
    assert "no result within" not in str(caught.value)
    assert has_ended(int(note.read_text()))


def test_a_process_that_ended_between_two_jobs_is_started_again(
    others: set[int], process: StepProcess, tmp_path: Path
) -> None:
    process.run(look_up(tmp_path), limit_s=60)
    (child,) = children(others)
    child.kill()
    psutil.wait_procs([child], timeout=10)
    (tmp_path / "another").mkdir()
    assert process.run(look_up(tmp_path / "another"), limit_s=60) == LookUpResult(None)


def test_a_step_out_of_time_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    job = delivering(
        tmp_path,
        "import subprocess, time, pathlib\n"
        "sleeper = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(sleeper.pid))\n"
        "time.sleep(600)\n",
    )
    process = StepProcess(
        ProcessPlan("bare", preload=("deliver.step",), writes=(tmp_path,)),
        tmp_path / "log",
    )
    try:
        # It answers when it is through with its imports.
        process.run(look_up(tmp_path), limit_s=120)
        with pytest.raises(BudgetSpent, match="no result within 8 s") as caught:
            process.run(job, limit_s=8)
        assert "the step deliver was ended" in caught.value.what
        assert "HANDOFF_STEP_TIME" in caught.value.remedy
    finally:
        process.close()
    assert has_ended(int(note.read_text()))


def test_the_log_says_how_to_repeat_a_step(process: StepProcess, tmp_path: Path) -> None:
    process.run(look_up(tmp_path), limit_s=60)
    (line,) = [x for x in process.log.read_text().splitlines() if x.startswith("repeat with:")]
    command = shlex.split(line.removeprefix("repeat with: python "))
    again = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout) == {
        "result": {"version": None, "manifest": None, "served": None}
    }


@pytest.mark.parametrize(
    ("sees", "seen"),
    [
        ("bare", set()),
        ("stores", {"AWS_SECRET_ACCESS_KEY"}),
        ("keys", {"HANDOFF_SIGNING_KEY"}),
        ("whole", {"AWS_SECRET_ACCESS_KEY", "HANDOFF_SIGNING_KEY"}),
    ],
)
def test_a_process_sees_the_secrets_that_its_step_needs_and_no_other(
    sees: str, seen: set[str], others: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", "/srv/keys/release.pem")
    plan = ProcessPlan("check", sees=sees, environment={"ADDED": "yes"})  # type: ignore[arg-type]
    started = StepProcess(plan, tmp_path / "check.log")
    try:
        started.run(look_up(tmp_path), limit_s=60)
        (child,) = children(others)
        environment = child.environ()
    finally:
        started.close()
    assert {"AWS_SECRET_ACCESS_KEY", "HANDOFF_SIGNING_KEY"} & set(environment) == seen
    assert environment["ADDED"] == "yes"


def test_closing_leaves_no_process(others: set[int], tmp_path: Path) -> None:
    started = StepProcess(ProcessPlan("bare", writes=(tmp_path,)), tmp_path / "bare.log")
    (child,) = children(others)
    family = [child, *child.children(recursive=True)]
    started.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_a_process_outlives_the_thread_that_asked_for_it(others: set[int], tmp_path: Path) -> None:
    # The kernel sends a parent-death signal when the thread ends that started the child.
    with ThreadPoolExecutor(1) as pool:
        plan = ProcessPlan("bare")
        started = pool.submit(StepProcess, plan, tmp_path / "bare.log").result()
    try:
        (child,) = children(others)
        time.sleep(1.0)
        assert is_running(child.pid)
    finally:
        started.close()


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys, time\n"
        "from handoff.infra.engine.child import ProcessPlan, StepProcess\n"
        f"StepProcess(ProcessPlan('bare'), pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    time.sleep(1.0)  # the launcher has to have asked for the signal
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_missing_file_is_reported_without_a_trace(process: StepProcess, tmp_path: Path) -> None:
    job = VerifyJob(tmp_path / "none", tmp_path / "none.pt", Recipe())
    with pytest.raises(Exception, match=r"none\.pt") as caught:
        process.run(job, limit_s=120)
    assert "Traceback" not in str(caught.value)


def test_how_far_an_upload_is_reaches_who_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = write_release(tmp_path / "release")
    stores = Stores(str(tmp_path / "store"), "sqlite:///nowhere")
    total = sum(file.size_bytes for file in release_files(manifest))
    process = StepProcess(ProcessPlan("register", sees="stores"), tmp_path / "register.log")
    try:
        with caplog.at_level(logging.INFO, logger="handoff.progress"):
            uploaded = process.run(UploadJob(manifest, tmp_path / "release", stores), limit_s=60)
    finally:
        process.close()
    assert uploaded.evidence
    records = [record.__dict__ for record in caplog.records]
    assert (records[-1]["phase"], records[-1]["step"]) == ("under way", "upload")
    assert (records[-1]["done"], records[-1]["total"]) == (total, total)


def test_the_limits_of_time_are_multiplied_by_the_factor(
    process: StepProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thousandth of a second is nobody's, and a thousand times it is enough.
    monkeypatch.setenv("HANDOFF_STEP_TIME", "1000")
    assert process.run(look_up(tmp_path), limit_s=0.06) == LookUpResult(None)
    monkeypatch.setenv("HANDOFF_STEP_TIME", "for ever")
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageProblem, match="HANDOFF_STEP_TIME is no factor"):
        process.run(look_up(tmp_path / "other"), limit_s=60)


def test_a_step_that_asks_for_too_much_memory_is_refused_with_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_STEP_MEMORY", "2G")
    delivery = write_delivery(tmp_path / "delivery", nn.Linear(4, 2), {"input": torch.randn(6, 4)})
    text = (delivery / "delivery.toml").read_text()
    wide = text.replace("min = 1", "min = 100000000").replace("max = 64", "max = 100000001")
    (delivery / "examples.safetensors").unlink()
    process = StepProcess(ProcessPlan("inspect", writes=(tmp_path,)), tmp_path / "inspect.log")
    try:
        process.run(IntakeJob(delivery, tmp_path / "staging"), limit_s=120)
        found = process.run(TraceabilityJob(tmp_path / "staging"), limit_s=120)
        assert found.verdict != "unsound"
        (delivery / "delivery.toml").write_text(wide)
        process.run(IntakeJob(delivery, tmp_path / "wide"), limit_s=120)
        with pytest.raises(BudgetSpent, match="the step inspect needs more memory") as caught:
            process.run(TraceabilityJob(tmp_path / "wide"), limit_s=120)
        assert caught.value.expected == "at most 2.0 GB"
        # The smallest input alone is more than that.
        (delivery / "delivery.toml").write_text(wide.replace("100000", "1000000"))
        with pytest.raises(DeliveryUnreadable, match="larger than this machine's memory"):
            process.run(IntakeJob(delivery, tmp_path / "wider"), limit_s=120)
    finally:
        process.close()


def test_the_process_that_signs_imports_nothing_that_draws_compiles_or_reaches_a_store() -> None:
    code = (
        "import sys, handoff.infra.engine.worker, handoff.tasks.registry.sign\n"
        "print(*{m.rpartition('.')[0] if m.startswith('handoff.') else m for m in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert {room for room in loaded if room.startswith("handoff.tasks")} == {
        "handoff.tasks", "handoff.tasks.registry",
    }  # fmt: skip
    assert not loaded & {"torch", "mlflow", "boto3", "prefect"}
