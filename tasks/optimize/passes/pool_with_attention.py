"""Pool embedded sequences under their mask by one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from handoff.tasks.optimize.kernels.attention_pooling import WIDEST, composition
from handoff.tasks.optimize.passes.pattern import PatternPass

_ATEN = torch.ops.aten
# Those of the pattern's tensors that aren't float32.
_DTYPES = {"ids": torch.int64, "kinds": torch.int64, "present": torch.bool}
_SIZES: dict[str, tuple[str | int, ...]] = {
    "table": ("items", "width"),
    "ids": ("rows", "length"),
    "categories": ("categories", "width"),
    "kinds": ("rows", "length"),
    "gate": ("width",),
    "weight": ("rows", "length"),
    "target": ("rows", 1, "width"),
    "present": ("rows", "length"),
    "zero": ("rows", "length"),
}
# What the kernels take as a number, where the pattern would take a tensor or a size as well.
_NUMBERS = ("mix", "slope", "scale", "fill")


class PoolWithAttention(PatternPass):
    """Compute a recommender's masked pooling of a sequence by one operator.

    Before: `v = leaky_relu((embedding(items, ids) + m * embedding(kinds, k)) * gate)`,
    `total = (v * weight).sum(1)` and `attended = (v * where(mask, softmax(...), 0)).sum(1)`.
    After: `total, attended = handoff.attention_pooling(...)`, which reads each embedded row once
    and skips padding: one Triton kernel on CUDA, a C++ function inside the package on the CPU.

    Conditions: float32 tables of at most 128 columns, int64 ids, kinds, weights and a mask of the
    ids' shape, a target for each row of them, a gate for each column, numbers that the graph says,
    and zeros where the mask says no.
    """

    name: ClassVar[str] = "pool-with-attention"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    pattern = staticmethod(composition)
    operator = torch.ops.handoff.attention_pooling.default

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Return whether dtypes and sizes are the operator's, and absent positions become 0."""
        if any(isinstance(given[name], torch.fx.Node) for name in _NUMBERS):
            return False
        values = {
            name: given[name].meta.get("val") for name in _SIZES
            if isinstance(given[name], torch.fx.Node)
        }  # fmt: skip
        if not all(isinstance(values.get(name), torch.Tensor) for name in _SIZES):
            return False
        if any(values[name].dtype is not _DTYPES.get(name, torch.float32) for name in _SIZES):
            return False
        sizes: dict[str, Any] = {}
        if not all(_has_sizes(value, _SIZES[name], sizes) for name, value in values.items()):
            return False
        width = sizes["width"]
        # What the C++ function has sums for.
        is_narrow = isinstance(width, int) and width <= WIDEST
        return is_narrow and given["zero"].target is _ATEN.zeros_like.default


def _has_sizes(value: torch.Tensor, expected: Sequence[str | int], known: dict[str, Any]) -> bool:
    """Return whether the sizes are certainly those wanted; names that aren't known yet are noted.

    Torch would broadcast sizes of 1, and the operator's kernels read beyond them.
    """
    if value.dim() != len(expected):
        return False
    pairs = [
        (size, known.setdefault(name, size) if isinstance(name, str) else name)
        for size, name in zip(value.shape, expected, strict=True)
    ]
    return all(bool(statically_known_true(size == other)) for size, other in pairs)
