"""Pool embedded sequences under their mask by one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from tasks.kernels.attention_pooling import composition
from tasks.passes.pattern import PatternPass

_ATEN = torch.ops.aten
_DTYPES = {
    **dict.fromkeys(("table", "categories", "gate", "weight", "target"), torch.float32),
    **dict.fromkeys(("ids", "kinds"), torch.int64),
    "present": torch.bool,
}
_WIDEST = 128
_AXES = {"table": 2, "categories": 2, "gate": 1, "weight": 2, "target": 3, "ids": 2, "kinds": 2}


class PoolWithAttention(PatternPass):
    """Compute a recommender's masked pooling of a sequence by one operator.

    Before: `v = leaky_relu((embedding(items, ids) + m * embedding(kinds, k)) * gate)`,
    `total = (v * weight).sum(1)` and `attended = (v * where(mask, softmax(...), 0)).sum(1)`.
    After: `total, attended = handoff.attention_pooling(...)`, which reads each embedded row once
    and skips padding: one Triton kernel on CUDA, a C++ function inside the package on the CPU.

    Conditions: float32 tables of at most 128 columns, int64 ids, a mask of the ids' shape, and
    zeros where it says no.
    """

    name: ClassVar[str] = "pool-with-attention"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    pattern = staticmethod(composition)
    operator = torch.ops.handoff.attention_pooling.default

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Tell whether dtypes and ranks are the operator's, and absent positions become 0."""
        nodes = {name: value for name, value in given.items() if isinstance(value, torch.fx.Node)}
        if any(node.meta["val"].dtype is not _DTYPES.get(name, torch.float32)
               for name, node in nodes.items()):  # fmt: skip
            return False
        if any(nodes[name].meta["val"].dim() != axes for name, axes in _AXES.items()):
            return False
        if nodes["present"].meta["val"].shape != nodes["ids"].meta["val"].shape:
            return False
        width = nodes["table"].meta["val"].shape[1]
        # What the C++ function has sums for.
        is_narrow = isinstance(width, int) and width <= _WIDEST
        return is_narrow and nodes["zero"].target is _ATEN.zeros_like.default
