"""The launcher: what it lets through, and what the child that it becomes may do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
    """Run the launcher on a program that tells what it is and sees, or on `command`."""
    reporting = (sys.executable, "-c", REPORT, "--", "--stores")
    return subprocess.run(
        [sys.executable, "-m", "infra.sandbox", *options, "--", *(command or reporting)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_child_can_leave_no_core_gain_no_rights_and_not_outlive_its_parent() -> None:
    seen = json.loads(launch().stdout)
    assert seen["core"] == [0, 0]
    assert seen["no_new_privileges"] == 1
    assert seen["death_signal"] == 9


def test_the_launcher_becomes_the_command_and_leaves_its_arguments_alone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "infra.sandbox", "--", sys.executable, "-c", REPORT, "--", "--set"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    output, _ = process.communicate(timeout=60)
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
