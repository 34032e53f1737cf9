"""Runs a command and measures it: seconds, CPU seconds, memory, and its standard error."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Run:
    """One run: its seconds, and the peak bytes of its largest process and of the whole tree.

    `first_s` are those until it wrote the first line to standard error, of which `stderr` is all.
    `cpu_s` are those of all that it started, fork servers and what they forked among them. Memory
    is the proportional set size (shared pages are counted once), sampled twice a second.
    """

    wall_s: float
    first_s: float
    cpu_s: float
    largest_bytes: int
    tree_bytes: int
    stderr: str


def handoff(folder: Path, *arguments: str) -> str:
    """Run one of handoff's commands with its home below `folder`; return its standard error."""
    return measure(handoff_command(*arguments), folder).stderr


def handoff_command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "handoff", *arguments]


def bare_script() -> list[str]:
    """Return the command line of what a person would write without Handoff."""
    return [sys.executable, "-m", "tests.studies.benchmarks.bare_release"]


def _environment(folder: Path) -> dict[str, str]:
    from handoff.artifacts.recipe.target import native_cpu_target

    # The bare script's cache is fresh for each run, as a release's is; both keep their
    # precompiled headers, which go by TMPDIR.
    cache = tempfile.mkdtemp(prefix="cache-", dir=folder)
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())]),
        "HANDOFF_HOME": str(folder / "home"),
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "TMPDIR": str(scratch),
        "ATEN_CPU_CAPABILITY": native_cpu_target().capability,
    }


def measure(command: list[str], folder: Path) -> Run:
    """Run `command` and return what it took; raise when it fails."""
    # What outlives whoever started it becomes a child of this process, and is counted.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    others = {child.pid for child in psutil.Process().children()}
    began, cpu_before = time.monotonic(), _children_s()
    process = subprocess.Popen(
        command, env=_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    peaks = [0, 0]
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks), daemon=True)
    sampler.start()
    stderr, first_s = process.stderr.readline(), time.monotonic() - began
    stderr += process.stderr.read()
    process.wait()
    wall_s = time.monotonic() - began
    sampler.join()
    for left in psutil.Process().children():
        if left.pid not in others:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(left.pid, 0)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {stderr[-2000:]}")
    return Run(wall_s, first_s, _children_s() - cpu_before, peaks[0], peaks[1], stderr)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sample(pid: int, peaks: list[int]) -> None:
    """Keep the largest process's and the tree's largest sizes until the process ends."""
    while True:
        try:
            root = psutil.Process(pid)
            if root.status() == psutil.STATUS_ZOMBIE:
                return
            sizes = [
                proportional_bytes(process.pid)
                for process in [root, *root.children(recursive=True)]
            ]
        except psutil.NoSuchProcess:
            return
        peaks[:] = max(peaks[0], *sizes), max(peaks[1], sum(sizes))
        time.sleep(0.5)


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended; 0 of no process."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0


def proportional_bytes(pid: int) -> int:
    """Return a process's proportional set size: shared pages count once, over all processes.

    0 for one that has ended, or that may not be looked at.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    (line,) = [line for line in text.splitlines() if line.startswith("Pss:")] or ["Pss: 0 kB"]
    return int(line.split()[1]) * 1024
