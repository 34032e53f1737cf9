"""What the passes share that lay tensors out otherwise."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


def relay(user: torch.fx.Node, value: object, layout: dict[str, Any]) -> torch.fx.Node:
    """Let `user` take a copy of `value` in another layout; none is made where it has that one."""
    assert isinstance(value, torch.fx.Node)
    graph = user.graph
    with graph.inserting_before(user):
        copied = graph.call_function(torch.ops.aten.contiguous.default, (value,), layout)
    copied.meta["val"] = value.meta["val"].contiguous(**layout)
    user.replace_input_with(value, copied)
    return copied
