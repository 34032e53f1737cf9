"""Puts int8 operators (`kernels.int8`) in the places of layers.

A graph that holds them computes in int8 whatever a compiler recognises: what torch's own quantized
graphs are made of, pairs of quantize and dequantize, is fused by rules that moved to torchao with
2.15, and computes in float32 without them, as inexact as in int8 (pytorch/ao#4566).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.int8.layers import (
    CONVOLUTION,
    LEVELS,
    Grid,
    quantize_weight,
    source_of,
)
from handoff.tasks.optimize.kernels import INT8_LAYERS
from handoff.tasks.optimize.passes.following import is_sum
from handoff.tasks.optimize.passes.purity import is_written_behind, last_writes
from handoff.tasks.optimize.passes.state import (
    add_buffer,
    add_call,
    arguments_of,
    copy_metadata,
    replace_node,
    state_name,
)

_ATEN = torch.ops.aten
# oneDNN's names for what it does to a result on its way out.
_POST_OPS = {
    _ATEN.relu: "relu", _ATEN.relu_: "relu", _ATEN.hardswish: "hardswish",
    _ATEN.hardswish_: "hardswish", _ATEN.silu: "swish", _ATEN.silu_: "swish",
    _ATEN.relu6: "hardtanh:0:6", _ATEN.relu6_: "hardtanh:0:6",
}  # fmt: skip
_HARDTANH = (_ATEN.hardtanh, _ATEN.hardtanh_)
_CONVOLUTION, _LINEAR, _DYNAMIC_LINEAR, _CONVOLUTION_ADD = INT8_LAYERS
_MAX_POOL = _ATEN.max_pool2d.default
_GATES = torch.ops.handoff.squeeze_excite.default
_RELU = (_ATEN.relu.default, _ATEN.relu_.default)
# What can leave its result on a grid.
_CAN_GIVE_STEPS = (*INT8_LAYERS, _GATES)
# The last arguments of each layer, and those of the gates.
_ONTO, _ACTIVATION = -2, -1
_GRID = (-2, -1)


@dataclass(frozen=True)
class _QuantizedTensor:
    """A tensor as uint8 on a grid, which is given by numbers, or by tensors found at each call."""

    steps: torch.fx.Node
    scale: float | torch.fx.Node
    zero: int | torch.fx.Node
    made_by: tuple[torch.fx.Node, ...]

    @property
    def onto(self) -> list[float]:
        """The grid that results are to be left on; [] where no numbers give it."""
        if isinstance(self.scale, torch.fx.Node) or isinstance(self.zero, torch.fx.Node):
            return []
        return [self.scale, float(self.zero)]


class Rewriter:
    """Rewrites layers of one program; each tensor is brought onto its grid once."""

    def __init__(
        self, program: ExportedProgram, grids: Mapping[torch.fx.Node, Grid], *, fuses_sums: bool
    ) -> None:
        """Prepare to rewrite; a tensor that `grids` lacks gets a grid of its own at each call.

        `fuses_sums` says whether sums of convolutions and of what has a grid become int8, too.
        """
        self._program = program
        self._grids = dict(grids)
        self._fuses_sums = fuses_sums
        self._quantized: dict[torch.fx.Node, _QuantizedTensor] = {}

    def replace(self, node: torch.fx.Node) -> None:
        """Put an operator in the place of a layer, and of the activation that alone takes it."""
        graph = self._program.graph
        source = source_of(node.args[0])
        assert isinstance(source, torch.fx.Node)
        quantized = self._quantize(source)
        users = list(node.users)
        activation = _post_op_of(users[0], node) if len(users) == 1 else ""
        last = users[0] if activation else node
        with graph.inserting_before(node):
            call = self._add_layer(node, quantized)
        if activation:
            _set_argument(call, _ACTIVATION, activation)
        copy_metadata(call, last)
        if last in self._grids:
            self._grids[call] = self._grids.pop(last)
        replace_node(self._program, last, call)
        if last is not node:
            graph.erase_node(node)

    def connect(self) -> None:
        """Let each result that such a layer takes leave its own on that one's grid already."""
        graph = self._program.graph
        for node in reversed(graph.find_nodes(op="call_function", target=_ATEN.contiguous.default)):
            if not node.users:
                graph.erase_node(node)
        if self._fuses_sums:
            self._fuse_sums()
        for pool, quantized in list(self._quantized.items()):
            layer = self._find_pooled_layer(pool)
            if layer and quantized.onto:
                self._quantize_pool(pool, layer, quantized)
        for source, quantized in list(self._quantized.items()):
            if source.target in _CAN_GIVE_STEPS and quantized.onto:
                self._emit_steps(source, quantized)

    def _fuse_sums(self) -> None:
        """Let a convolution add what goes past it, where such layers take the sum."""
        graph, sums = self._program.graph, []
        writes = last_writes(graph)
        for node in list(graph.nodes):
            last = _following_relu(node)
            target = self._quantized.get(last)
            fusable = self._find_fusable_sum(node, writes) if target and target.onto else None
            if target is None or fusable is None:
                continue
            layer, other = fusable
            summand = self._quantize(other)
            with graph.inserting_before(last):
                call = add_call(graph, _CONVOLUTION_ADD, (
                    *layer.args[:_ONTO], summand.steps, summand.scale, summand.zero,
                    target.onto, "none" if last is node else "relu",
                ))  # fmt: skip
            copy_metadata(call, last)
            self._quantized[last] = self._adopt_steps(call, target)
            sums.append((last, node, layer))
        # From the back: the next sum is mostly what else takes one.
        for last, node, layer in reversed(sums):
            quantized = self._quantized.pop(last)
            if last.users:
                last.replace_all_uses_with(wide := self._dequantize(quantized))
                self._program.graph_signature.replace_all_uses(last.name, wide.name)
            for erased in dict.fromkeys((last, node, layer)):
                graph.erase_node(erased)

    def _find_fusable_sum(
        self, node: torch.fx.Node, writes: Mapping[torch.fx.Node, torch.fx.Node]
    ) -> tuple[torch.fx.Node, torch.fx.Node] | None:
        """Return the convolution that can do the addition `node`, and what it is to add.

        None where there is none. `writes` are the last calls that write to a tensor's memory.
        """
        if not is_sum(node):
            return None
        one, other = map(source_of, node.args)
        assert isinstance(one, torch.fx.Node)
        assert isinstance(other, torch.fx.Node)
        for layer, past in sorted(((one, other), (other, one)), reverse=True):
            is_free = (
                layer.target is _CONVOLUTION and list(layer.users) == [node]
                and (layer.args[_ONTO], layer.args[_ACTIVATION]) == ([], "none")
            )  # fmt: skip
            has_grid = past in self._grids or past in self._quantized
            changes = is_written_behind(past, writes)
            if is_free and has_grid and not changes and layer is not past:
                return layer, past
        return None

    def _find_pooled_layer(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """Return the layer whose result goes through the max-pool `node` alone; None for none."""
        layer = source_of(node.args[0]) if node.target is _MAX_POOL else None
        if not isinstance(layer, torch.fx.Node) or layer.target is not _CONVOLUTION:
            return None
        between = [layer, *(user for user in layer.users if user is not node)]
        is_free = all(len(one.users) == 1 for one in between) and not layer.args[_ONTO]
        return layer if is_free else None

    def _quantize_pool(
        self, pool: torch.fx.Node, layer: torch.fx.Node, quantized: _QuantizedTensor
    ) -> None:
        """Let a layer give the grid's steps to a max-pool, which so reads a quarter of the bytes.

        The largest of rounded numbers is the largest number, rounded.
        """
        graph = self._program.graph
        _set_uint8_output(layer, quantized)
        with graph.inserting_before(pool):
            # As numbers: of uint8, torch's own pool counts places in uint8, too.
            wide = add_call(graph, _ATEN.to.dtype, (layer, torch.float32))
        others = [user for user in pool.users if user not in quantized.made_by]
        laid_out = pool.args[0]
        assert isinstance(laid_out, torch.fx.Node)
        pool.replace_input_with(laid_out, wide)
        if laid_out is not layer:
            graph.erase_node(laid_out)
        with graph.inserting_before(pool.next):
            steps = add_call(graph, _ATEN.to.dtype, (pool, torch.uint8))
        quantized = self._quantized[pool] = self._adopt_steps(steps, quantized)
        if others:
            self._replace_by_dequantized(pool, others, quantized)

    def _emit_steps(self, layer: torch.fx.Node, quantized: _QuantizedTensor) -> None:
        """Let a layer or gates give uint8; what takes that as float32 gets the grid's numbers."""
        _set_uint8_output(layer, quantized)
        quantized = self._adopt_steps(layer, quantized)
        others = [user for user in layer.users if user.target not in INT8_LAYERS]
        if others:
            self._replace_by_dequantized(layer, others, quantized)

    def _replace_by_dequantized(
        self, source: torch.fx.Node, others: list[torch.fx.Node], quantized: _QuantizedTensor
    ) -> None:
        """Let those that took `source` as float32 take the numbers of its grid."""
        result = self._dequantize(quantized)
        for user in others:
            user.replace_input_with(source, result)
        self._program.graph_signature.replace_all_uses(source.name, result.name)

    def _adopt_steps(self, call: torch.fx.Node, quantized: _QuantizedTensor) -> _QuantizedTensor:
        """Let a call's own result be the steps, in the place of the calls that made them."""
        quantized.steps.replace_all_uses_with(call)
        for node in reversed(quantized.made_by):
            self._program.graph.erase_node(node)
        return replace(quantized, steps=call, made_by=())

    def _dequantize(self, quantized: _QuantizedTensor) -> torch.fx.Node:
        """Add the calls that give steps' numbers as float32, behind them."""
        graph = self._program.graph
        with graph.inserting_before(quantized.steps.next):
            steps = add_call(graph, _ATEN.to.dtype, (quantized.steps, torch.float32))
            steps = add_call(graph, _ATEN.sub.Tensor, (steps, quantized.zero))
            return add_call(graph, _ATEN.mul.Tensor, (steps, quantized.scale))

    def _quantize(self, source: torch.fx.Node) -> _QuantizedTensor:
        """Return `source` on its grid; the layers that take it share that."""
        if source not in self._quantized:
            grid = self._grids.get(source)
            graph = self._program.graph
            with graph.inserting_before(_insertion_point(source)):
                self._quantized[source] = (
                    _quantize_statically(graph, source, grid)
                    if grid
                    else _quantize_dynamically(graph, source)
                )
        return self._quantized[source]

    def _add_layer(self, node: torch.fx.Node, quantized: _QuantizedTensor) -> torch.fx.Node:
        """Add the operator that computes what `node` does; its weight is packed at compile time."""
        arguments = arguments_of(node)
        graph = self._program.graph
        weight, scales = self._add_weight(arguments["weight"])
        leading = (quantized.steps, quantized.scale, quantized.zero, weight, scales,
                   arguments.get("bias"))  # fmt: skip
        if node.target is CONVOLUTION:
            sides = [list(arguments[name]) for name in ("stride", "padding", "dilation")]
            sides = [side * 2 if len(side) == 1 else side for side in sides]
            return add_call(
                graph, _CONVOLUTION, (*leading, *sides, arguments["groups"], [], "none")
            )
        operator = _LINEAR if isinstance(quantized.scale, float) else _DYNAMIC_LINEAR
        return add_call(graph, operator, (*leading, [], "none"))

    def _add_weight(self, weight: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Return the buffers of a weight as int8, and of its scales."""
        name = state_name(self._program, weight)
        value = quantize_weight(self._program.state_dict[name])
        stem = name.replace(".", "_")
        return (
            add_buffer(self._program, f"{stem}_int8", value.steps),
            add_buffer(self._program, f"{stem}_scales", value.scales),
        )


def _post_op_of(node: torch.fx.Node, layer: torch.fx.Node) -> str:
    """Return what oneDNN calls an activation that it may do behind a layer; '' for others."""
    operator = getattr(node.target, "overloadpacket", None)
    if operator is _ATEN.gelu and layer.target is not CONVOLUTION:
        return f"gelu:{arguments_of(node)['approximate']}"
    if operator in _HARDTANH:
        arguments = arguments_of(node)
        return f"hardtanh:{float(arguments['min_val'])!r}:{float(arguments['max_val'])!r}"
    return _POST_OPS.get(operator, "") if operator else ""


def _following_relu(node: torch.fx.Node) -> torch.fx.Node:
    """Return the ReLU that alone takes a call's result; the call itself where there is none."""
    only, *more = [*node.users, node]
    return only if more == [node] and only.target in _RELU else node


def _set_argument(node: torch.fx.Node, index: int, value: Any) -> None:  # noqa: ANN401 - an argument
    node.update_arg(len(node.args) + index, value)


def _set_uint8_output(layer: torch.fx.Node, quantized: _QuantizedTensor) -> None:
    """Let the result of an int8 layer, or of gates, be uint8 on a grid of numbers."""
    if layer.target is _GATES:
        for index, value in zip(_GRID, (quantized.scale, quantized.zero), strict=True):
            _set_argument(layer, index, value)
    else:
        _set_argument(layer, _ONTO, quantized.onto)
    layer.meta["val"] = layer.meta["val"].to(torch.uint8)


def _insertion_point(source: torch.fx.Node) -> torch.fx.Node:
    """Return the first node that may take `source`: behind it, and behind every placeholder."""
    node = source.next
    while node.op == "placeholder":
        node = node.next
    return node


def _quantize_statically(
    graph: torch.fx.Graph, source: torch.fx.Node, grid: Grid
) -> _QuantizedTensor:
    """Add the calls that bring a tensor onto a grid of numbers."""
    steps = add_call(graph, _ATEN.mul.Tensor, (source, 1.0 / grid.scale))
    made_by = (steps, *_round_to_steps(graph, steps, grid.zero))
    return _QuantizedTensor(made_by[-1], grid.scale, grid.zero, made_by)


def _quantize_dynamically(graph: torch.fx.Graph, source: torch.fx.Node) -> _QuantizedTensor:
    """Add the calls that find a tensor's range at each call, and bring it onto that grid."""

    def call(target: Any, *args: Any) -> torch.fx.Node:  # noqa: ANN401 - any operator's
        return add_call(graph, target, args)

    low = call(_ATEN.clamp.default, call(_ATEN.amin.default, source), None, 0.0)
    high = call(_ATEN.clamp.default, call(_ATEN.amax.default, source), 0.0)
    step = call(_ATEN.div.Tensor, call(_ATEN.sub.Tensor, high, low), LEVELS)
    scale = call(_ATEN.clamp.default, step, torch.finfo(torch.float32).tiny)
    zero = call(_ATEN.round.default, call(_ATEN.div.Tensor, call(_ATEN.neg.default, low), scale))
    steps = call(_ATEN.div.Tensor, source, scale)
    made_by = (steps, *_round_to_steps(graph, steps, zero))
    return _QuantizedTensor(made_by[-1], scale, call(_ATEN.to.dtype, zero, torch.int32), made_by)


def _round_to_steps(
    graph: torch.fx.Graph, scaled: torch.fx.Node, zero: int | torch.fx.Node
) -> list[torch.fx.Node]:
    """Add the calls that round what is scaled to whole steps from a grid's zero on."""
    calls = [add_call(graph, _ATEN.round.default, (scaled,))]
    calls.append(add_call(graph, _ATEN.add.Tensor, (calls[-1], zero)))
    calls.append(add_call(graph, _ATEN.clamp.default, (calls[-1], 0, LEVELS)))
    calls.append(add_call(graph, _ATEN.to.dtype, (calls[-1], torch.uint8)))
    return calls
