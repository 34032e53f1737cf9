"""The launcher: what it lets through, and what the child that it becomes may do."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.infra.engine.landlock import landlock_version
from tests.limits import LIMIT_S

with_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

SANDBOX = (sys.executable, "-m", "handoff.infra.engine.sandbox")
REPORT = (
    "import ctypes, json, os, resource, sys\n"
    "signal = ctypes.c_int()\n"
    "libc = ctypes.CDLL(None)\n"
    "libc.prctl(2, ctypes.byref(signal))\n"
    "print(json.dumps({'environment': dict(os.environ), 'arguments': sys.argv[1:],\n"
    "    'pid': os.getpid(), 'core': resource.getrlimit(resource.RLIMIT_CORE),\n"
    "    'no_new_privileges': libc.prctl(39, 0, 0, 0, 0), 'death_signal': signal.value}))\n"
)


def launch(*options: str, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the launcher on a program that reports what it is and sees, or on `command`."""
    reporting = (sys.executable, "-c", REPORT, "--", "--stores")
    return subprocess.run(
        [*SANDBOX, *options, "--", *(command or reporting)],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def test_the_child_can_leave_no_core_gain_no_rights_and_not_outlive_its_parent() -> None:
    seen = json.loads(launch().stdout)
    assert seen["core"] == [0, 0]
    assert seen["no_new_privileges"] == 1
    assert seen["death_signal"] == 9


def test_the_launcher_becomes_the_command_and_leaves_its_arguments_alone() -> None:
    process = subprocess.Popen(
        [
            *SANDBOX, "--", sys.executable, "-c", REPORT, "--", "--set",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    output, _ = process.communicate(timeout=LIMIT_S)
    seen = json.loads(output)
    assert seen["pid"] == process.pid
    assert seen["arguments"] == ["--", "--set"]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ((), {"CXX"}),
        (("--stores",), {"CXX", "AWS_SECRET_ACCESS_KEY", "https_proxy"}),
        (("--whole",), {"CXX", "AWS_SECRET_ACCESS_KEY", "https_proxy", "GITHUB_TOKEN"}),
    ],
)
def test_secrets_are_seen_where_they_are_needed(
    options: tuple[str, ...], seen: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"CXX", "AWS_SECRET_ACCESS_KEY", "https_proxy", "GITHUB_TOKEN"}
    for name in names:
        monkeypatch.setenv(name, "value")
    # An argument of the command's own that is spelt like an option changes nothing.
    assert set(json.loads(launch(*options).stdout)["environment"]) & names == seen


def test_what_is_set_is_added_and_may_hold_an_equals_sign() -> None:
    seen = json.loads(launch("--set", "ADDED=a=b", "--set", "PATH=").stdout)["environment"]
    assert seen["ADDED"] == "a=b"
    assert seen["PATH"] == ""


def test_the_commands_exit_code_is_the_launchers() -> None:
    assert launch(command=(sys.executable, "-c", "raise SystemExit(7)")).returncode == 7


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder with a key, where no temporary files of others lie."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="handoff-test-"))
    (folder / "home" / "keys" / "private").mkdir(parents=True)
    (folder / "home" / "builds").mkdir()
    key_of(folder / "home").write_text("the key")
    monkeypatch.setenv("HANDOFF_HOME", str(folder / "home"))
    monkeypatch.delenv("TMPDIR", raising=False)
    yield folder / "home"
    shutil.rmtree(folder)


def key_of(home: Path) -> Path:
    return home / "keys" / "private" / "signing.pem"


def run_code(code: str, *options: str) -> str:
    """Run Python in a child that the launcher started; return what it printed, or its error."""
    ended = launch(*options, command=(sys.executable, "-c", code))
    return ended.stdout.strip() if not ended.returncode else ended.stderr.splitlines()[-1]


def reading(path: Path | str) -> str:
    return f"print(open({str(path)!r}).read())"


@with_landlock
@pytest.mark.parametrize(
    ("options", "read"),
    [((), False), (("--stores",), False), (("--keys",), True), (("--whole",), True)],
)
def test_only_signing_and_the_training_sides_own_code_read_the_key(
    home: Path, options: tuple[str, ...], read: bool
) -> None:
    output = run_code(reading(key_of(home)), *options)
    assert (output == "the key") is read
    assert read or output.startswith("PermissionError")


@with_landlock
@pytest.mark.parametrize(
    "way",
    [
        "open('/proc/self/root' + key)",
        "open(f'/proc/{os.getppid()}/root' + key)",
        "os.symlink(key, builds + '/link'); open(builds + '/link')",
        "os.link(key, builds + '/link')",
        "os.rename(key, builds + '/key')",
        "os.rename(key, keys + '/key')",
        "os.rename(keys + '/private', builds + '/private')",
        "os.rename(keys + '/private', keys + '/other')",
        "os.rename(keys, builds + '/keys')",
        "os.rename(home, home + '2')",
        "os.mkdir(builds + '/m'); libc = ctypes.CDLL(None, use_errno=True);"
        "libc.mount(home.encode(), (builds + '/m').encode(), None, 4096, None)"
        " and (_ for _ in ()).throw(OSError(ctypes.get_errno(), 'mount'))",
        "subprocess.run(['cat', key], check=True)",
    ],
)  # fmt: skip
def test_there_is_no_way_round_it(home: Path, way: str) -> None:
    names = {"key": key_of(home), "keys": home / "keys", "builds": home / "builds", "home": home}
    given = "; ".join(f"{name} = {str(path)!r}" for name, path in names.items())
    output = run_code(f"import ctypes, os, subprocess; {given}; {way}; print('done')")
    assert output.startswith(("PermissionError", "OSError: [Errno 18]", "subprocess.Called")), (
        output
    )
    assert key_of(home).read_text() == "the key"


@with_landlock
def test_a_hard_link_that_somebody_else_made_stays_readable(home: Path) -> None:
    other = home / "builds" / "copy"
    other.hardlink_to(key_of(home))
    assert run_code(reading(other)) == "the key"


@with_landlock
@pytest.mark.parametrize("file", ["mem", "environ"])
def test_what_another_process_holds_in_memory_is_out_of_reach(home: Path, file: str) -> None:
    code = reading(f"/proc/{os.getpid()}/{file}")
    assert run_code(code, "--stores").startswith("PermissionError")


@with_landlock
def test_a_key_that_is_made_later_is_out_of_reach_too(home: Path) -> None:
    shutil.rmtree(home / "keys" / "private")
    code = (
        "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        f"{reading(key_of(home))}"
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "handoff.infra.engine.sandbox", "--", sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    key_of(home).parent.mkdir()
    key_of(home).write_text("the key")
    output, errors = process.communicate("\n", timeout=LIMIT_S)
    assert output == ""
    assert "PermissionError" in errors


@with_landlock
def test_other_files_are_read_moved_and_made_as_ever(home: Path, tmp_path: Path) -> None:
    (home / "keys" / "public.pem").write_text("public")
    code = (
        "import os, pathlib, tempfile\n"
        f"builds = pathlib.Path({str(home / 'builds')!r})\n"
        "(builds / 'a').mkdir()\n"
        "(builds / 'a' / 'file').write_text('read back')\n"
        "(builds / 'a').rename(builds / 'b')\n"
        f"os.rename(builds / 'b', {str(tmp_path / 'moved')!r})\n"
        "with tempfile.NamedTemporaryFile('w+') as scratch: scratch.write('x')\n"
        f"print(open({str(tmp_path / 'moved' / 'file')!r}).read(),\n"
        f"    open({str(home / 'keys' / 'public.pem')!r}).read())\n"
    )
    assert run_code(code) == "read back public"


@with_landlock
def test_what_is_made_directly_above_the_key_is_not_read_back(home: Path) -> None:
    made = home / "made"
    assert run_code(f"open({str(made)!r}, 'w').write('x'); {reading(made)}").startswith(
        "PermissionError"
    )
    # What lies there when the next child starts is like any other file.
    assert run_code(reading(made)) == "x"


@with_landlock
def test_a_compiler_works_beside_the_key(home: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    source = home / "builds" / "main.cpp"
    source.write_text('#include <cstdio>\nint main() { std::puts("compiled"); }\n')
    program = source.with_suffix("")
    code = (
        "import subprocess\n"
        f"subprocess.run(['g++', {str(source)!r}, '-o', {str(program)!r}], check=True)\n"
        f"subprocess.run([{str(program)!r}], check=True)\n"
    )
    assert run_code(code) == "compiled"


@with_landlock
def test_a_path_can_be_barred_by_name(home: Path) -> None:
    (home / "builds" / "notes").write_text("notes")
    output = run_code(reading(home / "builds" / "notes"), "--bar", str(home / "builds"), "--keys")
    assert output.startswith("PermissionError")
    assert run_code(reading(key_of(home)), "--bar", str(home / "builds"), "--keys") == "the key"


def test_without_landlock_the_child_runs_and_the_doctor_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from handoff.infra.commands.doctor import run_checks
    from handoff.infra.engine import landlock

    def call(number: int, *arguments: object) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(landlock, "_call", call)
    assert not landlock.bar_reading([key_of(home)])
    run_checks(as_json=True)
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["keys"]["answer"] == "note"
    assert "every step can read the signing key" in checks["keys"]["found"]
    assert "Linux 5.19" in checks["keys"]["remedy"]
