"""What follows a layer: activations, which it takes along wherever it is computed, and sums.

Inductor has the layer's own kernel compute an activation, where that follows at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from handoff.tasks.optimize.kernels.activations import FUNCTIONS, NO_ACTIVATION
from handoff.tasks.optimize.passes.purity import is_written_behind
from handoff.tasks.optimize.passes.state import (
    add_call,
    arguments_of,
    copy_metadata,
    replace_node,
)

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
# The places that our own functions know them by.
PLACES: dict[object, int] = {
    getattr(_ATEN, name).default: place
    for place, target in enumerate(FUNCTIONS)
    # What is between two layers may be overwritten: nothing else sees it.
    for name in (target.overloadpacket.__name__, f"{target.overloadpacket.__name__}_")
}
_HARDTANH = {_ATEN.hardtanh.default, _ATEN.hardtanh_.default}
_RELU6 = (0.0, 6.0)


def place_of(node: torch.fx.Node) -> int:
    """Return the place of an activation among our own functions'; `NO_ACTIVATION` for none."""
    if node.target in _HARDTANH:
        limits = arguments_of(node)
        is_relu6 = (limits["min_val"], limits["max_val"]) == _RELU6
        return FUNCTIONS.index(_ATEN.relu6.default) if is_relu6 else NO_ACTIVATION
    return PLACES.get(node.target, NO_ACTIVATION)


def is_sum(node: torch.fx.Node | None) -> bool:
    """Return whether a call adds two float32 tensors of one shape."""
    if node is None or node.target not in (_ATEN.add.Tensor, _ATEN.add_.Tensor) or node.kwargs:
        return False
    values = [one.meta.get("val") for one in node.args if isinstance(one, torch.fx.Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != 2:
        return False
    one, other = tensors
    return (
        one.dtype is other.dtype is torch.float32
        and one.dim() == other.dim()
        and all(statically_known_true(a == b) for a, b in zip(one.shape, other.shape, strict=True))
    )


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


def follow(
    node: torch.fx.Node, writes: dict[torch.fx.Node, torch.fx.Node], *, sums: bool
) -> tuple[list[torch.fx.Node], torch.fx.Node | None, int]:
    """Return a layer with what follows it alone, what is added to it, and its activation.

    With `sums`, the first sum of it and of another tensor belongs to that. `writes` are the last
    calls that write to a tensor's memory: what is added isn't written to behind the sum. The
    function that is to do all of it stands where the last of them does.
    """
    chain, added = [node], None
    following = _only_user(node)
    if sums and is_sum(following):
        assert following is not None
        others = [one for one in following.all_input_nodes if one is not node]
        if others and not is_written_behind(others[0], writes):
            chain.append(following)
            added = others[0]
            following = _only_user(following)
    activation = NO_ACTIVATION if following is None else place_of(following)
    if following is not None and activation != NO_ACTIVATION:
        chain.append(following)
    return chain, added, activation


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    only, *more = [*node.users, None]
    return only if more == [None] else None
