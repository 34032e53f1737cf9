"""Threads: how many a step takes that has others beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def half_of_the_threads() -> Iterator[None]:
    """Compute with half of torch's threads in the body, and leave the others to who runs beside it.

    OpenMP's threads spin while they wait for one that has lost its core to another process, which
    made a step take three times as long with two threads on two busy cores as with one.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(max(1, usual // 2))
    try:
        yield
    finally:
        torch.set_num_threads(usual)
