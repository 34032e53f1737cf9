"""Programs that a process beside a GPU starts: confined as it is, and named by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.isolation import isolated_command
from handoff.infra.engine.landlock import landlock_version
from handoff.infra.engine.spawning import running_program
from tests.limits import LIMIT_S

confined = pytest.mark.skipif(landlock_version() < 6, reason="this kernel can't confine as much")

# What NVIDIA's driver does when it starts, and what a payload in the program would try.
PROGRAM = """
import json, os, sys, threading
def name_a_thread():
    with open(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/comm", "w") as file:
        file.write("cuda-thread")
def done(act):
    try:
        act()
    except OSError:
        return False
    return True
def in_a_thread():
    found.append(done(name_a_thread))
found = []
thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
print(json.dumps({
    "names its threads": found[0],
    "writes settings of the kernel": done(lambda: open("/proc/sys/kernel/core_pattern", "r+")),
    "writes beside": done(lambda: open(sys.argv[1], "w")),
    "has open": [os.readlink(f"/proc/self/fd/{n}") for n in range(3, 99)
                 if os.path.lexists(f"/proc/self/fd/{n}")],
    "is": os.getpid(),
    "is asked by": os.environ.get("HANDOFF_STARTER"),
    "input": sys.stdin.read(),
}))
"""
# A confined process that starts programs, in ways that its arguments say.
ASKING = """
import json, os, subprocess, sys, tempfile
from handoff.infra.engine.spawning import running_program
kind, program, place = sys.argv[1:]
def ran(code, *arguments, is_killed=False):
    with tempfile.TemporaryFile() as errors:
        with running_program([sys.executable, "-I", "-c", code, *arguments], errors) as running:
            first = b""
            if is_killed:
                first = os.read(running.output.fileno(), 100)
                running.kill()
            text, status = (first + running.output.read()).decode(), running.wait()
        errors.seek(0)
        return {"text": text, "status": status, "errors": errors.read().decode()[-400:]}
if kind == "asked":
    print(json.dumps(ran(program, place)))
elif kind == "child":
    child = subprocess.run([sys.executable, "-I", "-c", program, place], capture_output=True,
                           text=True, stdin=subprocess.DEVNULL)
    print(json.dumps({"text": child.stdout, "status": child.returncode, "errors": child.stderr}))
elif kind == "killed":
    print(json.dumps(ran("import time; print(1, flush=True); time.sleep(600)", is_killed=True)))
elif kind == "crashed":
    print(json.dumps(ran("import os; print(os.getpid()); os.abort()")))
elif kind == "refused":
    with tempfile.TemporaryFile() as errors:
        with running_program(["/no/such/program"], errors) as running:
            status = running.wait()
        errors.seek(0)
        print(json.dumps({"text": "", "status": status, "errors": errors.read().decode()}))
elif kind == "left":
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with running_program([sys.executable, "-I", "-c", code], sys.stderr.buffer) as running:
        print(os.read(running.output.fileno(), 100).decode().strip(), flush=True)
        os._exit(0)
"""


def ask(kind: str, place: Path, *, gpu: bool = True) -> str:
    scratch = place / "scratch"
    root = Path(__file__).parents[3]
    asking = (
        f"import sys; sys.path.insert(0, {str(root)!r}); sys.argv.pop(0)\n"
        f"import tempfile; tempfile.tempdir = {str(scratch)!r}\n{ASKING}"
    )
    command = isolated_command(
        "handoff.infra.engine.sandbox", "--confined", *(["--gpu"] if gpu else []),
        "--run", str(root), "--link", str(scratch), "--set", f"TMPDIR={scratch}", "--",
        sys.executable, "-I", "-c", asking, "asking", kind, PROGRAM, str(place / "beside"),
    )  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def answer(kind: str, place: Path, *, gpu: bool = True) -> dict[str, Any]:
    return dict(json.loads(ask(kind, place, gpu=gpu)))


@confined
def test_beside_a_gpu_a_started_program_names_its_threads_and_can_do_no_more(
    tmp_path: Path,
) -> None:
    result = answer("asked", tmp_path)
    assert result["status"] == 0, result["errors"]
    findings = json.loads(result["text"])
    assert findings.pop("has open") == [f"/proc/{findings.pop('is')}/task"]
    assert findings == {
        "names its threads": True,
        "writes settings of the kernel": False,
        "writes beside": False,
        "is asked by": None,
        "input": "",
    }
    assert not (tmp_path / "beside").exists()


@confined
@pytest.mark.parametrize("gpu", [True, False])
def test_what_a_confined_process_starts_itself_may_not_even_do_that(
    tmp_path: Path, gpu: bool
) -> None:
    findings = json.loads(answer("child", tmp_path, gpu=gpu)["text"])
    assert not findings["names its threads"]
    assert not findings["writes settings of the kernel"]


@confined
def test_a_started_program_is_killed_crashes_or_does_not_start_as_a_child_does(
    tmp_path: Path,
) -> None:
    for gpu in (True, False):
        killed = answer("killed", tmp_path, gpu=gpu)
        assert killed["status"] == -9
        assert killed["text"] == "1\n"
        crashed = answer("crashed", tmp_path, gpu=gpu)
        assert crashed["status"] == -6
    refused = answer("refused", tmp_path)
    assert refused["status"] == 127
    assert "FileNotFoundError" in refused["errors"]


@confined
def test_a_started_program_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    program = int(ask("left", tmp_path))
    began = time.monotonic()
    while os.path.exists(f"/proc/{program}"):  # noqa: PTH110 - a process, not a file
        assert time.monotonic() - began < 20
        time.sleep(0.05)


def test_where_there_is_no_starter_a_program_is_a_child(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("wb") as errors:
        with running_program(["sh", "-c", "echo said; exit 3"], errors) as running:
            assert running.output.read() == b"said\n"
            assert running.wait() == 3
        with running_program(["sleep", "600"], errors) as running, pytest.raises(TimeoutError):
            running.wait(0.05)
        assert running.wait() == -9
