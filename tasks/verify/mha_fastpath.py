"""Lets eager compute attention as its layers define it, which is what is captured of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def by_definition() -> Iterator[None]:
    """Keep torch's fused kernels for whole attention layers out of the body, or of the function.

    Without gradients `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call one, and export
    captures what they call otherwise. Where a mask leaves a row nothing to attend to, the fused one
    gives NaN and the other a number (torch 2.15). Eager is timed with it.
    """
    was_allowed = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_allowed)
