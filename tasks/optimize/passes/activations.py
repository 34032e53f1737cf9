"""The activations behind a layer, which a layer that is computed in another shape takes along.

Inductor has the layer's own kernel compute an activation, where that follows at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.state import add_call, copy_metadata, replace_node

_ATEN = torch.ops.aten
_NAMES = (
    "relu", "relu6", "silu", "gelu", "tanh", "sigmoid", "hardtanh", "hardswish", "hardsigmoid",
    "leaky_relu",
)  # fmt: skip
# Of one tensor, and numbers. A value that nothing else uses needn't be overwritten.
_ACTIVATIONS: dict[Any, torch._ops.OpOverload] = {
    getattr(_ATEN, name + mark).default: getattr(_ATEN, name).default
    for name in _NAMES
    for mark in ("", "_")
}


def apply_activations(
    layer: torch.fx.Node, result: torch.fx.Node
) -> tuple[list[torch.fx.Node], torch.fx.Node]:
    """Apply the activations that follow `layer` alone to `result`, which has another shape.

    Return the layer with those activations, and what stands for the last of them in that shape.
    """
    chain = [layer]
    while len(chain[-1].users) == 1:
        (follower,) = chain[-1].users
        function = _ACTIVATIONS.get(follower.target)
        if function is None or follower.kwargs or follower.args[0] is not chain[-1]:
            break
        with layer.graph.inserting_before(follower):
            result = add_call(layer.graph, function, (result, *follower.args[1:]))
        chain.append(follower)
    return chain, result


def replace_chain(program: ExportedProgram, chain: list[torch.fx.Node], new: torch.fx.Node) -> None:
    """Let every use of the chain's last node be one of `new`; erase all of it."""
    *others, last = chain
    copy_metadata(new, last)
    replace_node(program, last, new)
    for node in reversed(others):
        node.graph.erase_node(node)
