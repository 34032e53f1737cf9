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
    is_sum,
    quantize_weight,
    source_of,
)
from handoff.tasks.optimize.kernels import INT8_LAYERS
from handoff.tasks.optimize.passes.purity import last_writes
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
_POST = {
    _ATEN.relu: "relu", _ATEN.relu_: "relu", _ATEN.hardswish: "hardswish",
    _ATEN.hardswish_: "hardswish", _ATEN.silu: "swish", _ATEN.silu_: "swish",
    _ATEN.relu6: "hardtanh:0:6", _ATEN.relu6_: "hardtanh:0:6",
}  # fmt: skip
_HARDTANH = (_ATEN.hardtanh, _ATEN.hardtanh_)
_CONVOLUTION, _LINEAR, _MEASURED, _ADDING = INT8_LAYERS
_MAX_POOL = _ATEN.max_pool2d.default
_RELU = (_ATEN.relu.default, _ATEN.relu_.default)
# The last arguments of each.
_ONTO, _ACTIVATION = -2, -1


@dataclass(frozen=True)
class _Rounded:
    """A tensor as uint8 on a grid, which is told by numbers, or by tensors found at each call."""

    steps: torch.fx.Node
    scale: float | torch.fx.Node
    zero: int | torch.fx.Node
    made_by: tuple[torch.fx.Node, ...]

    @property
    def onto(self) -> list[float]:
        """The grid that results are to be left on; [] where no numbers tell it."""
        if isinstance(self.scale, torch.fx.Node) or isinstance(self.zero, torch.fx.Node):
            return []
        return [self.scale, float(self.zero)]


class Rewriter:
    """Rewrites layers of one program; each tensor is brought onto its grid once."""

    def __init__(
        self, program: ExportedProgram, grids: Mapping[torch.fx.Node, Grid], *, adds: bool
    ) -> None:
        """Prepare to rewrite; a tensor that `grids` lacks gets a grid of its own at each call.

        `adds` tells whether sums of convolutions and of what has a grid become int8, too.
        """
        self._program = program
        self._grids = dict(grids)
        self._adds = adds
        self._rounded: dict[torch.fx.Node, _Rounded] = {}

    def replace(self, node: torch.fx.Node) -> None:
        """Put an operator in the place of a layer, and of the activation that alone takes it."""
        graph = self._program.graph
        given = source_of(node.args[0])
        assert isinstance(given, torch.fx.Node)
        rounded = self._onto_grid(given)
        users = list(node.users)
        activation = _activation(users[0], node) if len(users) == 1 else ""
        last = users[0] if activation else node
        with graph.inserting_before(node):
            made = self._add_layer(node, rounded)
        if activation:
            _set(made, _ACTIVATION, activation)
        copy_metadata(made, last)
        if last in self._grids:
            self._grids[made] = self._grids.pop(last)
        replace_node(self._program, last, made)
        if last is not node:
            graph.erase_node(node)

    def join(self) -> None:
        """Let each result that such a layer takes leave its own on that one's grid already."""
        graph = self._program.graph
        for node in reversed(graph.find_nodes(op="call_function", target=_ATEN.contiguous.default)):
            if not node.users:
                graph.erase_node(node)
        if self._adds:
            self._add_inside()
        for pool, rounded in list(self._rounded.items()):
            layer = self._pooled(pool)
            if layer and rounded.onto:
                self._pool_steps(pool, layer, rounded)
        for given, rounded in list(self._rounded.items()):
            if given.target in INT8_LAYERS and rounded.onto:
                self._leave_steps(given, rounded)

    def _add_inside(self) -> None:
        """Let a convolution add what goes past it, where such layers take the sum."""
        graph, sums = self._program.graph, []
        writes = last_writes(graph)
        for node in list(graph.nodes):
            last = _relu_behind(node)
            taken = self._rounded.get(last)
            found = self._summands(node, writes) if taken and taken.onto else None
            if taken is None or found is None:
                continue
            layer, other = found
            held = self._onto_grid(other)
            with graph.inserting_before(last):
                made = add_call(graph, _ADDING, (
                    *layer.args[:_ONTO], held.steps, held.scale, held.zero,
                    taken.onto, "none" if last is node else "relu",
                ))  # fmt: skip
            copy_metadata(made, last)
            self._rounded[last] = self._made_by(made, taken)
            sums.append((last, node, layer))
        # From the back: the next sum is mostly what else takes one.
        for last, node, layer in reversed(sums):
            rounded = self._rounded.pop(last)
            if last.users:
                last.replace_all_uses_with(wide := self._widened(rounded))
                self._program.graph_signature.replace_all_uses(last.name, wide.name)
            for gone in dict.fromkeys((last, node, layer)):
                graph.erase_node(gone)

    def _summands(
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
            has_grid = past in self._grids or past in self._rounded
            changes = past in writes and past < writes[past]
            if is_free and has_grid and not changes and layer is not past:
                return layer, past
        return None

    def _pooled(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """Return the layer whose result goes through the max-pool `node` alone; None for none."""
        layer = source_of(node.args[0]) if node.target is _MAX_POOL else None
        if not isinstance(layer, torch.fx.Node) or layer.target is not _CONVOLUTION:
            return None
        between = [layer, *(user for user in layer.users if user is not node)]
        is_free = all(len(one.users) == 1 for one in between) and not layer.args[_ONTO]
        return layer if is_free else None

    def _pool_steps(self, pool: torch.fx.Node, layer: torch.fx.Node, rounded: _Rounded) -> None:
        """Let a layer give the grid's steps to a max-pool, which so reads a quarter of the bytes.

        The largest of rounded numbers is the largest number, rounded.
        """
        graph = self._program.graph
        _let_give_steps(layer, rounded)
        with graph.inserting_before(pool):
            # As numbers: of uint8, torch's own pool counts places in uint8, too.
            wide = add_call(graph, _ATEN.to.dtype, (layer, torch.float32))
        others = [user for user in pool.users if user not in rounded.made_by]
        laid_out = pool.args[0]
        assert isinstance(laid_out, torch.fx.Node)
        pool.replace_input_with(laid_out, wide)
        if laid_out is not layer:
            graph.erase_node(laid_out)
        with graph.inserting_before(pool.next):
            steps = add_call(graph, _ATEN.to.dtype, (pool, torch.uint8))
        made = self._rounded[pool] = self._made_by(steps, rounded)
        if others:
            self._give_numbers(pool, others, made)

    def _leave_steps(self, given: torch.fx.Node, rounded: _Rounded) -> None:
        """Let a layer give uint8; what takes it as float32 gets the numbers of its grid."""
        _let_give_steps(given, rounded)
        made = self._made_by(given, rounded)
        others = [user for user in given.users if user.target not in INT8_LAYERS]
        if others:
            self._give_numbers(given, others, made)

    def _give_numbers(
        self, given: torch.fx.Node, others: list[torch.fx.Node], rounded: _Rounded
    ) -> None:
        """Let those that took `given` as float32 take the numbers of its grid."""
        result = self._widened(rounded)
        for user in others:
            user.replace_input_with(given, result)
        self._program.graph_signature.replace_all_uses(given.name, result.name)

    def _made_by(self, made: torch.fx.Node, rounded: _Rounded) -> _Rounded:
        """Let a call's own result be the steps, in the place of the calls that made them."""
        rounded.steps.replace_all_uses_with(made)
        for gone in reversed(rounded.made_by):
            self._program.graph.erase_node(gone)
        return replace(rounded, steps=made, made_by=())

    def _widened(self, rounded: _Rounded) -> torch.fx.Node:
        """Add the calls that give steps' numbers as float32, behind them."""
        graph = self._program.graph
        with graph.inserting_before(rounded.steps.next):
            steps = add_call(graph, _ATEN.to.dtype, (rounded.steps, torch.float32))
            steps = add_call(graph, _ATEN.sub.Tensor, (steps, rounded.zero))
            return add_call(graph, _ATEN.mul.Tensor, (steps, rounded.scale))

    def _onto_grid(self, given: torch.fx.Node) -> _Rounded:
        """Return `given` on its grid; the layers that take it share that."""
        if given not in self._rounded:
            grid = self._grids.get(given)
            graph = self._program.graph
            with graph.inserting_before(_first_behind(given)):
                made = _round(graph, given, grid) if grid else _measure(graph, given)
            self._rounded[given] = made
        return self._rounded[given]

    def _add_layer(self, node: torch.fx.Node, given: _Rounded) -> torch.fx.Node:
        """Add the operator that computes what `node` does; its weight is packed at compile time."""
        told = arguments_of(node)
        graph, weight = self._program.graph, told["weight"]
        what = (given.steps, given.scale, given.zero, *self._add_weight(weight), told.get("bias"))
        if node.target is CONVOLUTION:
            sides = [list(told[name]) for name in ("stride", "padding", "dilation")]
            sides = [side * 2 if len(side) == 1 else side for side in sides]
            return add_call(graph, _CONVOLUTION, (*what, *sides, told["groups"], [], "none"))
        operator = _LINEAR if isinstance(given.scale, float) else _MEASURED
        return add_call(graph, operator, (*what, [], "none"))

    def _add_weight(self, weight: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Return the buffers of a weight as int8, and of its scales."""
        name = state_name(self._program, weight)
        value = quantize_weight(self._program.state_dict[name])
        stem = name.replace(".", "_")
        return (
            add_buffer(self._program, f"{stem}_int8", value.steps),
            add_buffer(self._program, f"{stem}_scales", value.scales),
        )


def _activation(node: torch.fx.Node, layer: torch.fx.Node) -> str:
    """Return what oneDNN calls an activation that it may do behind a layer; '' for others."""
    operator = getattr(node.target, "overloadpacket", None)
    if operator is _ATEN.gelu and layer.target is not CONVOLUTION:
        return f"gelu:{arguments_of(node)['approximate']}"
    if operator in _HARDTANH:
        told = arguments_of(node)
        return f"hardtanh:{float(told['min_val'])!r}:{float(told['max_val'])!r}"
    return _POST.get(operator, "") if operator else ""


def _relu_behind(node: torch.fx.Node) -> torch.fx.Node:
    """Return the ReLU that alone takes a call's result; the call itself where there is none."""
    only, *more = [*node.users, node]
    return only if more == [node] and only.target in _RELU else node


def _set(node: torch.fx.Node, place: int, value: Any) -> None:  # noqa: ANN401 - an argument
    node.update_arg(len(node.args) + place, value)


def _let_give_steps(layer: torch.fx.Node, rounded: _Rounded) -> None:
    """Let an int8 layer's result be uint8 on a grid of numbers."""
    _set(layer, _ONTO, rounded.onto)
    layer.meta["val"] = layer.meta["val"].to(torch.uint8)


def _first_behind(given: torch.fx.Node) -> torch.fx.Node:
    """Return the first node that may take `given`: behind it, and behind every placeholder."""
    found = given.next
    while found.op == "placeholder":
        found = found.next
    return found


def _round(graph: torch.fx.Graph, given: torch.fx.Node, grid: Grid) -> _Rounded:
    """Add the calls that bring a tensor onto a grid of numbers."""
    steps = add_call(graph, _ATEN.mul.Tensor, (given, 1.0 / grid.scale))
    made_by = (steps, *_to_steps(graph, steps, grid.zero))
    return _Rounded(made_by[-1], grid.scale, grid.zero, made_by)


def _measure(graph: torch.fx.Graph, given: torch.fx.Node) -> _Rounded:
    """Add the calls that find a tensor's range at each call, and bring it onto that grid."""

    def call(target: Any, *args: Any) -> torch.fx.Node:  # noqa: ANN401 - any operator's
        return add_call(graph, target, args)

    low = call(_ATEN.clamp.default, call(_ATEN.amin.default, given), None, 0.0)
    high = call(_ATEN.clamp.default, call(_ATEN.amax.default, given), 0.0)
    step = call(_ATEN.div.Tensor, call(_ATEN.sub.Tensor, high, low), LEVELS)
    scale = call(_ATEN.clamp.default, step, torch.finfo(torch.float32).tiny)
    zero = call(_ATEN.round.default, call(_ATEN.div.Tensor, call(_ATEN.neg.default, low), scale))
    steps = call(_ATEN.div.Tensor, given, scale)
    made_by = (steps, *_to_steps(graph, steps, zero))
    return _Rounded(made_by[-1], scale, call(_ATEN.to.dtype, zero, torch.int32), made_by)


def _to_steps(
    graph: torch.fx.Graph, scaled: torch.fx.Node, zero: int | torch.fx.Node
) -> list[torch.fx.Node]:
    """Add the calls that round what is scaled to whole steps from a grid's zero on."""
    calls = [add_call(graph, _ATEN.round.default, (scaled,))]
    calls.append(add_call(graph, _ATEN.add.Tensor, (calls[-1], zero)))
    calls.append(add_call(graph, _ATEN.clamp.default, (calls[-1], 0, LEVELS)))
    calls.append(add_call(graph, _ATEN.to.dtype, (calls[-1], torch.uint8)))
    return calls
