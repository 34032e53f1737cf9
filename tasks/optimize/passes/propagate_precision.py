"""What lies between operators in a lower precision, which may go on in it.

An operator that was lowered gives its result back in float32, and the next one casts it again: what
is between both reads and writes twice the bytes. Here such a cast is moved behind the activations,
sums, norms and changes of shape that follow. Each computes in float32 inside, as torch's kernels do
in lower precisions, and rounds what it gives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.purity import is_view, pure_nodes

_ATEN = torch.ops.aten

_ACTIVATIONS = (
    _ATEN.relu, _ATEN.gelu, _ATEN.silu, _ATEN.sigmoid, _ATEN.tanh, _ATEN.hardswish,
    _ATEN.hardsigmoid, _ATEN.hardtanh, _ATEN.relu6, _ATEN.leaky_relu, _ATEN.elu, _ATEN.mish,
    _ATEN.clamp, _ATEN.neg, _ATEN.abs,
)  # fmt: skip
_SUMS = (_ATEN.add, _ATEN.sub, _ATEN.mul, _ATEN.div, _ATEN.where, _ATEN.masked_fill)
_NORMS = (_ATEN.layer_norm, _ATEN.group_norm, _ATEN.softmax)
_POOLS = (
    _ATEN.max_pool2d, _ATEN.avg_pool2d, _ATEN.adaptive_avg_pool2d, _ATEN.mean,
    _ATEN.upsample_nearest2d,
)  # fmt: skip
_SHAPES = (
    _ATEN.view, _ATEN.reshape, _ATEN.permute, _ATEN.transpose, _ATEN.t, _ATEN.flatten,
    _ATEN.unflatten, _ATEN.squeeze, _ATEN.unsqueeze, _ATEN.expand, _ATEN.cat, _ATEN.stack,
    _ATEN.slice, _ATEN.select, _ATEN.contiguous, _ATEN.clone, _ATEN.pad, _ATEN.constant_pad_nd,
)  # fmt: skip
_PARTS = (_ATEN.split, _ATEN.chunk, _ATEN.unbind, _ATEN.split_with_sizes)
_PROPAGATING = {*_ACTIVATIONS, *_SUMS, *_NORMS, *_POOLS, *_SHAPES}

_OUT_OF_PLACE = {
    _ATEN.relu_.default: _ATEN.relu.default,
    _ATEN.silu_.default: _ATEN.silu.default,
    _ATEN.hardswish_.default: _ATEN.hardswish.default,
    _ATEN.hardsigmoid_.default: _ATEN.hardsigmoid.default,
    _ATEN.hardtanh_.default: _ATEN.hardtanh.default,
    _ATEN.leaky_relu_.default: _ATEN.leaky_relu.default,
    _ATEN.sigmoid_.default: _ATEN.sigmoid.default,
    _ATEN.tanh_.default: _ATEN.tanh.default,
    _ATEN.relu6_.default: _ATEN.relu6.default,
    _ATEN.add_.Tensor: _ATEN.add.Tensor,
    _ATEN.sub_.Tensor: _ATEN.sub.Tensor,
    _ATEN.mul_.Tensor: _ATEN.mul.Tensor,
}

Cast = Callable[[torch.fx.Node, torch.fx.Node], torch.fx.Node]
Upcast = Callable[[torch.fx.Node], None]


def propagate_precision(
    program: ExportedProgram, dtype: torch.dtype, cast: Cast, upcast: Upcast
) -> None:
    """Let what follows an operator in `dtype` compute in it, too.

    `cast(source, user)` casts a node to the dtype for one user, `upcast` casts what a node
    gives back to float32 for all that use it. What is written to through a view is left alone, and
    so is what is float32 by the graph's own casts.
    """
    _replace_in_place(program.graph, dtype)
    pure = pure_nodes(program.graph)
    for node in list(program.graph.nodes):
        if _is_cast(node, dtype) and (source := _cast_source(node.args[0], dtype)) is not None:
            # To the precision that it had before it was raised.
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)
        elif node not in pure or not _follows_cast(node, dtype):
            continue
        elif _overload_packet(node) in _PROPAGATING:
            _lower_arguments(node, dtype, cast)
            upcast(node)
        elif _overload_packet(node) in _PARTS:
            _lower_arguments(node, dtype, cast)
            node.meta["val"] = [part.to(dtype) for part in node.meta["val"]]
            for part in list(node.users):
                upcast(part)
    for node in reversed(program.graph.nodes):
        if _is_cast(node, torch.float32) and not node.users:
            program.graph.erase_node(node)


def _replace_in_place(graph: torch.fx.Graph, dtype: torch.dtype) -> None:
    """Let activations and sums that write to their first argument make a tensor of their own.

    That changes nothing where the argument is no view and has none: who reads it later gets the
    new one.
    """
    for node in list(graph.nodes):
        functional = _OUT_OF_PLACE.get(node.target)
        if functional is None:
            continue
        destination = node.args[0]
        others = [user for user in destination.users if user is not node]
        if destination.op != "call_function" or any(map(_may_alias, others)):
            continue
        if is_view(destination) and _cast_source(destination, dtype) is None:
            continue
        node.target = functional
        later_users = {user for user in others if node < user}
        destination.replace_all_uses_with(node, delete_user_cb=lambda user: user in later_users)  # noqa: B023


def _may_alias(node: torch.fx.Node) -> bool:
    """Return whether a call's result shares memory with an argument, or it writes to one."""
    writes_or_views = is_view(node) or node.target in _OUT_OF_PLACE
    return node.op == "call_function" and writes_or_views and not _changes_dtype(node)


def _overload_packet(node: torch.fx.Node) -> object:
    return getattr(node.target, "overloadpacket", None)


def _follows_cast(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    """Return whether a call gives float32 because a cast back to it is among its arguments."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(one, torch.Tensor) and one.dtype is torch.float32 for one in parts):
        return False
    if isinstance(value, (list, tuple)) and any(
        user.target is not operator.getitem for user in node.users
    ):
        return False
    return any(_cast_source(argument, dtype) is not None for argument in node.all_input_nodes)


def _lower_arguments(node: torch.fx.Node, dtype: torch.dtype, cast: Cast) -> None:
    """Give a call its float32 tensors in the lower precision; a norm's weights stay."""
    is_norm = _overload_packet(node) in _NORMS
    replacements: dict[torch.fx.Node, torch.fx.Node] = {}
    for argument in node.all_input_nodes:
        source = _cast_source(argument, dtype)
        value = argument.meta.get("val")
        if source is not None:
            replacements[argument] = source
        elif not is_norm and isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            replacements[argument] = cast(argument, node)
    node.args = torch.fx.node.map_arg(node.args, lambda n: replacements.get(n, n))
    node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: replacements.get(n, n))


def _is_cast(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    return node.target is _ATEN.to.dtype and node.args[1:] == (dtype,) and not node.kwargs


def _changes_dtype(node: torch.fx.Node) -> bool:
    """Return whether a cast gives another dtype than it is given, and so memory of its own."""
    if node.target is not _ATEN.to.dtype:
        return False
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    return bool(source.meta["val"].dtype != node.meta["val"].dtype)


def _cast_source(node: object, dtype: torch.dtype) -> torch.fx.Node | None:
    """Return what was cast back to float32, if the node is such a cast."""
    if not isinstance(node, torch.fx.Node) or not _is_cast(node, torch.float32):
        return None
    (source, _) = node.args
    assert isinstance(source, torch.fx.Node)
    value = source.meta.get("val")
    return source if isinstance(value, torch.Tensor) and value.dtype is dtype else None
