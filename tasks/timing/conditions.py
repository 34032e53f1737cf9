"""Conditions: what this process has of the machine while it times, and what others take of it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.recipe.target import describe_host_cpu

# Of the environment: what threads, the loader and the allocator go by.
_PREFIXES = (
    "OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "ATEN_", "LD_", "MALLOC_", "GLIBC_",
)  # fmt: skip


def digest_conditions() -> Digest:
    """Return one digest for processor, cores, threads, kernel, glibc and torch.

    The share of the processor that a container has (cgroup v2's `cpu.max`) is part of it.
    """
    quota = ""
    with contextlib.suppress(OSError):
        quota = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8")
    conditions = {
        "processor": describe_host_cpu(),
        "cores": sorted(os.sched_getaffinity(0)),
        "quota": quota,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "environment": {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)},
    }
    return digest_bytes(json.dumps(conditions, sort_keys=True).encode())


@contextmanager
def sharing_threads(others: int) -> Iterator[None]:
    """Compute with torch's threads in equal parts for the body and `others` that compute beside it.

    OpenMP's threads spin while they wait for one that has lost its core to another process, which
    made a step take three times as long with two threads on two busy cores as with one.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(max(1, usual // (1 + others)))
    try:
        yield
    finally:
        torch.set_num_threads(usual)


_STAT = Path("/proc/stat")
# Of the first line: user, nice, system; then interrupts, and what another guest of the host took.
_WORK = (0, 1, 2, 5, 6, 7)


class BackgroundLoad:
    """Counts from when it is made; both clocks are the kernel's, in hundredths of a second."""

    def __init__(self) -> None:
        self._began, self._total, self._own = time.perf_counter(), _total_busy_s(), _own_busy_s()

    def processors(self) -> float | None:
        """Return how many processors others have taken on average since; None where none knows.

        What was so short that the kernel's clock ticked a few times is None, too.
        """
        elapsed = time.perf_counter() - self._began
        total = _total_busy_s()
        if self._total is None or total is None or elapsed < 0.1:
            return None
        return round(max(0.0, (total - self._total) - (_own_busy_s() - self._own)) / elapsed, 2)


def _total_busy_s() -> float | None:
    """Return the seconds that all processors have worked; None where the system doesn't say."""
    try:
        columns = _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:]
        return sum(int(columns[column]) for column in _WORK) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_busy_s() -> float:
    spent = os.times()
    return spent.user + spent.system
