"""Conditions: what this process has of the machine, on which a call's time depends; its threads."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.recipe.target import host_cpu_model

# Of the environment: what threads, the loader and the allocator go by.
_PREFIXES = ("OMP_", "MKL_", "KMP_", "GOMP_", "LD_", "MALLOC_", "GLIBC_")


def digest_conditions() -> Digest:
    """Return one digest for processor, cores, threads, kernel, glibc and torch.

    The share of the processor that a container has (cgroup v2's `cpu.max`) is part of it.
    """
    quota = ""
    with contextlib.suppress(OSError):
        quota = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8")
    plain = {
        "processor": host_cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "quota": quota,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "environment": {k: v for k, v in os.environ.items() if k.startswith(_PREFIXES)},
    }
    return digest_bytes(json.dumps(plain, sort_keys=True).encode())


@contextmanager
def half_of_the_threads() -> Iterator[None]:
    """Compute with half of torch's threads in the body, and leave the others to the other side.

    OpenMP's threads spin while they wait for one that has lost its core to another process, which
    made a step take three times as long with two threads on two busy cores as with one.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(max(1, usual // 2))
    try:
        yield
    finally:
        torch.set_num_threads(usual)
