"""Where a part of the run works: processes, mounts and network of its own, gone when it ends.

`unshare` gives a part namespaces of its own, and kills all that is in them when it ends, whatever
it has started: engine, containers, servers. Mounts and interfaces go with their namespaces. What
the kernel keeps is the folders of control groups, which are removed then.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# How long a part that was asked to end may take down what it has started.
_GRACE_S = 90.0
# Adopts what an ending process leaves, as an init does; the shell is the first process there.
_FIRST = '"$@"; exit $?'


def cgroup_of(folder: Path) -> str:
    """Return the name of the control group of what runs for that folder."""
    return f"handoff-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def run_apart(command: list[str], folder: Path, *, with_network: bool) -> int:
    """Run the command in namespaces of its own; return its exit code once nothing of it is left.

    With its own network it has a loopback device and nothing else. Asked to end (SIGINT, SIGTERM)
    it is given time to take down what it has started, and is killed then.
    """
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if with_network:
        apart.append("--net")
    part = subprocess.Popen(
        [*apart, "bash", "-c", _FIRST, "bash", *command], start_new_session=True
    )
    try:
        with _asked_to_end(part):
            return part.wait()
    finally:
        if part.poll() is None:
            part.kill()  # and with it all that is in its namespaces
        part.wait()
        remove_cgroups(folder)


@contextmanager
def _asked_to_end(part: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGINT and SIGTERM on to the part's command; kill the part if that takes too long."""

    def hand_on(number: int, _frame: object) -> None:
        print("Asked to end: taking down what runs", file=sys.stderr, flush=True)
        for process in _commands_of(part.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        signal.signal(signal.SIGALRM, lambda *_: part.kill())
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _commands_of(unshare: int) -> list[int]:
    """Return the part's own command: the child of the shell that is the child of `unshare`."""
    return [process for shell in _children(unshare) for process in _children(shell)][:1]


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text("ascii").split()] if listed.exists() else []


def cgroup_folders(folder: Path) -> list[Path]:
    """Return the control groups that its containers have had, the deepest first."""
    name = cgroup_of(folder)
    tops = [*_CGROUPS.glob(name), *_CGROUPS.glob(f"*/{name}")]
    groups = [Path(place) for top in tops for place, _, _ in os.walk(top)]
    return sorted(groups, key=lambda group: len(group.parts), reverse=True)


def remove_cgroups(folder: Path) -> None:
    """Remove them; the kernel may need a moment until the last process is out."""
    deadline = time.monotonic() + 20
    while groups := cgroup_folders(folder):
        for group in groups:
            with suppress(OSError):
                group.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)


def left_of(folder: Path) -> list[str]:
    """Return what is left on this machine of a run in that folder: processes, mounts, groups."""
    left = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended since
        is_engine = any(name in words for name in (b"dockerd", b"containerd", b"docker-proxy"))
        if is_engine and str(folder).encode() in words:
            left.append(f"process {place.name}")
    mounts = Path("/proc/self/mountinfo").read_text("utf-8")
    left += [f"mount {line.split()[4]}" for line in mounts.splitlines() if f"{folder}/" in line]
    left += [f"control group {place}" for place in cgroup_folders(folder)]
    return left
