"""A process that serves keeps freed memory, unless its operator has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# As a package does: a few buffers in a call, freed at its end.
_SERVE = """
import resource, sys
if sys.argv[2] == "torch's":
    import torch
else:
    import ctypes, types

    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    class Empty:
        def __init__(self, size, dtype):
            self.place, self.size = ctypes.c_void_p(), size
            assert libc.posix_memalign(ctypes.byref(self.place), 64, size) == 0
        def zero_(self):
            ctypes.memset(self.place, 0, self.size)
            return self
        def __del__(self):
            libc.free(self.place)

    torch = sys.modules["torch"] = types.SimpleNamespace(empty=Empty, uint8=None)
from handoff.artifacts.serve.loader import keep_freed_memory

def call():
    buffers = [torch.empty(4 << 20, dtype=torch.uint8).zero_() for _ in range(14)]
    buffers.clear()

if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(5):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    call()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""
_PAGES = 14 * (4 << 20) // os.sysconf("SC_PAGE_SIZE")


def faults_a_call(way: str, allocator: str, **environment: str) -> int:
    """Return the page faults of a call that fills 56 MiB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, way, allocator], capture_output=True, text=True, check=True,
        env=os.environ | environment,
    )  # fmt: skip
    return int(done.stdout)


def test_a_call_finds_the_memory_that_the_one_before_it_freed() -> None:
    # Left to itself, two processes of three meet a fault for every page, and the third none, for as
    # long as they live: something may happen to lie at the heap's end that keeps it from shrinking.
    assert max(faults_a_call("keep", "torch's") for _ in range(3)) < _PAGES // 100


@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_a_threshold_that_an_operator_has_set_stays(environment: dict[str, str]) -> None:
    # What is asked of malloc is what torch asks, whose import takes seconds.
    assert faults_a_call("keep", "as torch's", **environment) > _PAGES // 2
    assert faults_a_call("leave", "as torch's", **environment) > _PAGES // 2
