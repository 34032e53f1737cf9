"""Fork servers: what is forked is what a program of its own would be, and ends as one does."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from handoff.artifacts.errors import BudgetSpent, DeliveryUnreadable, StepCrashed, UsageProblem
from handoff.infra.engine import child, forking, forkserver
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.forking import ForkedProcess, ForkRequest, ForkServers
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.extensions import digest_extension
from tests.limits import LIMIT_S

# What a process finds out about itself, written to where it may write.
LOOKING = """
import ctypes, gc, json, os, random, resource, signal, sys, tempfile, threading
from pathlib import Path
import numpy, torch

status = dict(
    line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
)
def may(act):
    try:
        act()
    except OSError as error:
        return str(error.errno)
    return "done"
def leads_to(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").split(":")[0]
    except OSError:
        return ""  # that of the folder's list
limits = {
    name: resource.getrlimit(getattr(resource, name))
    for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_DATA"
}
Path(os.environ["TMPDIR"], "seen.json").write_text(json.dumps({
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "limits": limits,
    "memory": resource.getrlimit(resource.RLIMIT_DATA)[0] > 0,
    "leads its group": os.getpgid(0) == os.getpid() == os.getsid(0),
    **{name: status[name].split() for name in (
        "NoNewPrivs", "Seccomp", "Seccomp_filters", "CapEff", "CapBnd", "CapPrm", "Umask", "SigIgn",
    )},
    "threads": [len(os.listdir("/proc/self/task")) < 4, torch.get_num_threads()],
    "descriptors": sorted(filter(None, map(leads_to, os.listdir("/proc/self/fd")))),
    "inheritable": [os.get_inheritable(number) for number in range(3)],
    "path": sys.path,
    "flags": [getattr(sys.flags, name) for name in (
        "isolated", "ignore_environment", "no_user_site", "safe_path", "dont_write_bytecode",
    )],
    "temporary": tempfile.gettempdir(),
    "seed": torch.initial_seed(),
    "drawn": torch.randn(3).tolist(),
    "drawn by numpy": numpy.random.rand(3).tolist(),
    "level": torch.backends.cpu.get_cpu_capability(),
    "libc": ctypes.CDLL(None).getenv(b"ATEN_CPU_CAPABILITY") != 0,
    "network": len(Path("/proc/net/dev").read_text().splitlines()),
    "reads others' files": may(lambda: open("SECRET").close()),
    "writes elsewhere": may(lambda: open("SECRET.written", "w").close()),
    "makes sockets": may(lambda: __import__("socket").socket().close()),
    "signals its parent": may(lambda: os.kill(os.getppid(), 0)),
    "interrupt": str(signal.getsignal(signal.SIGINT)),
}))
"""
PRELOADED = ("intake",)


@contextmanager
def fork_servers() -> Iterator[ForkServers]:
    own = ForkServers()
    yield own
    for server in own._servers.values():
        server.close()


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    """Fork servers of the test's own."""
    with fork_servers() as own:
        monkeypatch.setattr(child, "FORK_SERVERS", own)
        yield own


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServers]:
    """Fork servers that import once, where secrets are about, and one thread was asked for."""
    folder = tmp_path_factory.mktemp("lasting")
    with fork_servers() as lasting_servers, pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "FORK_SERVERS", lasting_servers)
        patch.setenv("AWS_SECRET_ACCESS_KEY", "not for steps")
        patch.setenv("OMP_NUM_THREADS", "1")
        with closing(started(folder, "graph")) as process:
            refused_as_ever(process, folder)
        patch.undo()
        yield lasting_servers


@pytest.fixture
def shared(lasting: ForkServers, monkeypatch: pytest.MonkeyPatch) -> ForkServers:
    """They, for one of several tests, which does them no harm."""
    # By which a server is found again.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(child, "FORK_SERVERS", lasting)
    return lasting


def seen_by_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> dict[str, Any]:
    """Return what a step process finds out about itself."""
    secret, scratch = tmp_path / "secret", tmp_path / "scratch"
    secret.write_text("secret")
    scratch.mkdir(exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_look.py").write_text(LOOKING.replace("SECRET", str(secret)))
    plan = ProcessPlan(
        "graph", PRELOADED, (f"planted_look@{digest_extension('planted_look')}",),
        {"TMPDIR": str(scratch), "HOME": str(scratch), **environment}, writes=(scratch,),
    )  # fmt: skip
    process = StepProcess(plan, tmp_path / "logs" / "graph.log")
    with closing(process), pytest.raises(UsageProblem, match="brings nothing"):
        process.run(TraceabilityJob(tmp_path), limit_s=120)
    found: dict[str, Any] = json.loads((scratch / "seen.json").read_text())
    (scratch / "seen.json").unlink()
    return found


@pytest.mark.parametrize("level", ["", "avx2"])
def test_what_is_forked_has_what_a_program_of_its_own_has_and_no_more(
    shared: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for steps")
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", str(tmp_path / "key"))
    environment = {"ATEN_CPU_CAPABILITY": level} if level else {}
    forked, again = (seen_by_a_process(tmp_path, monkeypatch, environment) for _ in range(2))
    assert shared._servers
    off = ForkServers()
    off.disable()
    monkeypatch.setattr(child, "FORK_SERVERS", off)
    alone = seen_by_a_process(tmp_path, monkeypatch, environment)
    # No two draw the same, where nothing is seeded.
    for name in ("seed", "drawn", "drawn by numpy"):
        assert len({str(seen.pop(name)) for seen in (forked, alone, again)}) == 3
    assert forked == alone == again
    assert "AWS_SECRET_ACCESS_KEY" not in forked["environment"]
    assert forked["NoNewPrivs"] == ["1"]
    assert not level or forked["level"] == "AVX2"


def started(tmp_path: Path, name: str, preload: tuple[str, ...] = PRELOADED) -> StepProcess:
    plan = ProcessPlan(name, preload, writes=(tmp_path,))
    return StepProcess(plan, tmp_path / "logs" / f"{name}.log")


def refused_as_ever(process: StepProcess, tmp_path: Path) -> None:
    """See that the process does its work."""
    with pytest.raises(DeliveryUnreadable):
        process.run(IntakeJob(tmp_path / "none", tmp_path / "staging"))


def test_several_are_forked_from_one_server_and_known_by_their_names(
    shared: ForkServers, tmp_path: Path
) -> None:
    with (
        closing(started(tmp_path, "graph")) as one,
        closing(started(tmp_path, "run", ("verify.reference",))) as another,
    ):
        refused_as_ever(one, tmp_path)
        refused_as_ever(another, tmp_path)
        processes = [psutil.Process(process._process.pid) for process in (one, another)]
        assert [process.name() for process in processes] == ["graph", "run"]
        server, next_one = (psutil.Process(process.ppid()) for process in processes)
        # What imports more is forked from what imports less.
        assert (next_one.ppid(), server.ppid()) == (server.pid, os.getpid())
    assert len(shared._servers) == 2
    gone, left = psutil.wait_procs(processes, timeout=10)
    assert (len(gone), left) == (2, [])
    assert server.is_running()


def test_what_is_begun_early_is_what_is_asked_later(servers: ForkServers, tmp_path: Path) -> None:
    child.begin_servers()
    begun = dict(servers._servers)
    assert begun
    for preload in (PRELOADED, ("inspect.step",)):
        started(tmp_path, "graph", preload).close()
    assert servers._servers == begun


def test_a_step_process_begins_no_servers() -> None:
    servers = ForkServers()
    servers.disable()
    servers.begin(())
    assert servers._servers == {}


def test_a_server_has_no_secret_in_its_environment(shared: ForkServers, tmp_path: Path) -> None:
    with closing(started(tmp_path, "graph")) as process:
        refused_as_ever(process, tmp_path)
        server = psutil.Process(psutil.Process(process._process.pid).ppid())
        assert "AWS_SECRET_ACCESS_KEY" not in server.environ()
        # What counts when libraries are loaded is there, since it has loaded them.
        assert server.environ()["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("preload", "environment"),
    [
        ((), {}),
        (("registry.sign",), {}),
        (PRELOADED, {"OMP_NUM_THREADS": "1"}),
        (PRELOADED, {"PYTHONWARNINGS": "ignore"}),
    ],
)
def test_what_needs_another_start_is_a_program_of_its_own(
    servers: ForkServers, preload: tuple[str, ...], environment: dict[str, str]
) -> None:
    assert servers.layer_for(preload, environment) is None
    assert servers.layer_for(PRELOADED, {"ATEN_CPU_CAPABILITY": "avx2"}) == 0
    assert servers.layer_for((*PRELOADED, "verify.step"), {}) == 1
    assert servers.layer_for((*PRELOADED, "compile.step"), {}) == 2


def test_what_is_closed_before_it_began_is_never_forked(
    shared: ForkServers, tmp_path: Path
) -> None:
    process = started(tmp_path, "unwanted")
    process.close()
    process.close()
    with closing(started(tmp_path, "graph")) as wanted:
        refused_as_ever(wanted, tmp_path)
        server = psutil.Process(psutil.Process(wanted._process.pid).ppid())
        names = [one.name() for one in server.children()]
        # Beside them may be the server that imports more.
        assert [name for name in names if name != "python"] == ["graph"]


def test_waiting_for_a_process_to_begin_counts_as_its_time(
    servers: ForkServers, tmp_path: Path
) -> None:
    with closing(started(tmp_path, "graph")) as process:
        server = next(one for one in psutil.Process().children() if _serves(one))
        server.suspend()
        try:
            with pytest.raises(BudgetSpent, match="longer than it may"):
                process.submit(IntakeJob(tmp_path, tmp_path / "staging"), limit_s=0.5).result()
        finally:
            server.resume()


def _serves(process: psutil.Process) -> bool:
    return "handoff.infra.engine.forkserver" in process.cmdline()


def test_a_server_that_was_killed_takes_its_processes_along_and_another_is_started(
    servers: ForkServers, tmp_path: Path
) -> None:
    with closing(started(tmp_path, "graph")) as process:
        refused_as_ever(process, tmp_path)
        forked = psutil.Process(process._process.pid)
        os.kill(forked.ppid(), signal.SIGKILL)
        assert process._process.wait(30) == -signal.SIGKILL
        assert psutil.wait_procs([forked], timeout=10)[1] == []
        # As any process that ended, it is started again for the next job.
        refused_as_ever(process, tmp_path)
        assert process._process.pid != forked.pid


def test_a_crash_has_its_signal_and_takes_along_what_it_started(
    shared: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    crash = """
        import os, signal, subprocess, sys
        from pathlib import Path
        left = subprocess.Popen(["sleep", "600"])
        Path(os.environ["TMPDIR"], "left").write_text(str(left.pid))
        os.kill(os.getpid(), signal.SIGSEGV)
    """
    (tmp_path / "planted_crash.py").write_text(textwrap.dedent(crash))
    extensions = (f"planted_crash@{digest_extension('planted_crash')}",)
    plan = ProcessPlan("graph", PRELOADED, extensions, {"TMPDIR": str(tmp_path / "scratch")})
    process = StepProcess(plan, tmp_path / "logs" / "graph.log")
    with closing(process), pytest.raises(StepCrashed, match="SIGSEGV"):
        process.run(TraceabilityJob(tmp_path), limit_s=120)
    left = int((tmp_path / "scratch" / "left").read_text())
    # It takes a moment to end.
    deadline = time.monotonic() + LIMIT_S
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_can_not_import_says_why_in_the_log(
    servers: ForkServers, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        request = ForkRequest("graph", (), ())
        # Without the environment's packages there is no torch.
        forked = servers.fork(0, request, log.fileno(), writing, ["-S"])
    os.close(writing)
    assert forked.wait(60) == 1
    assert forked.pid is None
    assert "No module named 'torch'" in (tmp_path / "log").read_text()
    forked.close()
    os.close(reading)


def test_where_no_process_can_be_forked_the_log_says_so_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    requests, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = forkserver._Server(requests, 0)
    for number in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with (tmp_path / f"log-{number}").open("wb") as log:
            descriptors = [
                os.open(os.devnull, os.O_RDONLY),
                os.dup(log.fileno()),
                os.dup(log.fileno()),
            ]
            server._fork_step_process(["graph", [], []], [*descriptors, theirs.detach()])
        forked = ForkedProcess(open(os.devnull, "wb"), ours)  # noqa: SIM115, PTH123 - closed with it
        assert (forked.wait(5), forked.pid) == (1, None)
        assert "no process could be forked" in (tmp_path / f"log-{number}").read_text()
        forked.close()


def test_servers_and_all_they_forked_end_with_the_process_that_has_them(tmp_path: Path) -> None:
    program = f"""
        import time
        from pathlib import Path
        from handoff.infra.engine.child import ProcessPlan, StepProcess
        process = StepProcess(ProcessPlan("graph", {PRELOADED!r}), Path("logs", "graph.log"))
        print(process._process.begin(100), flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as owner:
        assert owner.stdout is not None
        forked = psutil.Process(int(owner.stdout.readline()))
        server = forked.parent()
        assert server is not None
        owner.kill()
    assert psutil.wait_procs([forked, server], timeout=LIMIT_S)[1] == []


def test_a_process_is_waited_for_as_long_as_is_said(shared: ForkServers, tmp_path: Path) -> None:
    with closing(started(tmp_path, "graph")) as process:
        refused_as_ever(process, tmp_path)
        assert isinstance(process._process, ForkedProcess)
        began = time.monotonic()
        assert process._process.wait(0.2) is None
        assert time.monotonic() - began >= 0.2
        process._process.kill()
        assert process._process.wait() == process._process.poll() == -signal.SIGKILL


def test_a_step_process_has_no_servers_of_its_own() -> None:
    program = (
        "import os\n"
        "from handoff.infra.engine.forking import FORK_SERVERS\n"
        "print(FORK_SERVERS.layer_for(('intake',), {}), flush=True)\n"
        "if os.fork() == 0:\n"
        "    print(FORK_SERVERS.layer_for(('intake',), {}), flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert sorted(ended.stdout.split()) == ["0", "None"]
    assert forking.LAYERS
