"""Compute squeeze-and-excite blocks by a function of our own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from handoff.tasks.optimize.kernels.squeeze_excite import LEAST_CHANNELS, NO_GRID
from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.following import PLACES
from handoff.tasks.optimize.passes.purity import is_written_behind, last_writes
from handoff.tasks.optimize.passes.state import (
    SHAPES,
    RepackedWeights,
    add_call,
    arguments_of,
    copy_metadata,
    drop_unused_state,
    is_constant,
    replace_node,
    skip_shapes,
    state_name,
)

_ATEN = torch.ops.aten
_OPERATOR = torch.ops.handoff.squeeze_excite.default
_LAYERS = (_ATEN.linear.default,)
_MEANS = (_ATEN.adaptive_avg_pool2d.default, _ATEN.mean.dim)
_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class _Block:
    """A block's parts, as the operator takes them; `excite` isn't transposed yet."""

    image: torch.fx.Node
    squeeze: torch.fx.Node
    squeeze_bias: torch.fx.Node | None
    excite: torch.fx.Node
    excite_bias: torch.fx.Node | None
    activation: int
    gate: int
    inside: tuple[torch.fx.Node, ...]
    """What the operator does instead, from the back."""


class SqueezeExcite(NodePass[ExportedProgram]):
    """Call a function of our own for a squeeze-and-excite block.

    Before: `y = x * gate(linear(act(linear(x.mean((2, 3)), S, s)), E, e))[:, :, None, None]`.
    After: `y = handoff.squeeze_excite(x, S, s, E.T, e, act, gate, ...)`, which on the CPU becomes a
    C++ function inside the package: its layers are so small that calling oneDNN for each takes
    longer than they do. On CUDA it is the same operators as before.

    Conditions: float32 or bfloat16, two dimensions, 16 channels at least, activations among relu,
    relu6, silu, hardswish, sigmoid and hardsigmoid, weights of the program's own, and nothing else
    that uses what is between, or writes to it. It belongs behind `convolution-to-linear`, and to
    `channels-last`, since the function gives its result so.
    """

    name: ClassVar[str] = "squeeze-excite"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the products of an image with its gates."""
        writes = last_writes(program.graph)
        products = program.graph.find_nodes(op="call_function", target=_ATEN.mul.Tensor)
        return [node for node in products if _find_block(program, node, writes)]

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace one."""
        block = _find_block(program, node, last_writes(program.graph))
        assert block is not None
        squeeze = self._weights.add(block.squeeze, "rows", lambda one: one)
        excite = self._weights.add(block.excite, "columns", torch.t)
        graph = node.graph
        with graph.inserting_before(node):
            result = add_call(
                graph, _OPERATOR,
                (block.image, squeeze, block.squeeze_bias, excite, block.excite_bias,
                 block.activation, block.gate, *NO_GRID),
            )  # fmt: skip
        copy_metadata(result, node)
        replace_node(program, node, result)
        for one in block.inside:
            graph.erase_node(one)

    def call(self, program: ExportedProgram) -> bool:
        """Replace them all; blocks that share weights go on sharing them."""
        self._weights = RepackedWeights(program)
        return super().call(program)

    def clean_up(self, program: ExportedProgram) -> None:
        """Drop the weights as the blocks had them."""
        program.graph.eliminate_dead_code()
        drop_unused_state(program)


def _find_block(
    program: ExportedProgram, product: torch.fx.Node, writes: dict[torch.fx.Node, torch.fx.Node]
) -> _Block | None:
    """Return the block that ends in a product; None if it is of something else."""
    factors = product.all_input_nodes
    if len(factors) != 2:
        return None
    left, right = factors
    return _match(program, left, right, writes) or _match(program, right, left, writes)


def _match(
    program: ExportedProgram,
    image: torch.fx.Node,
    gates: torch.fx.Node,
    writes: dict[torch.fx.Node, torch.fx.Node],
) -> _Block | None:
    value, inside = image.meta["val"], list[torch.fx.Node]()
    calls: list[torch.fx.Node] = []
    node: object = gates
    for targets in (PLACES, _LAYERS, PLACES, _LAYERS, _MEANS):
        if (call := _enter(node, targets, inside)) is None:
            return None
        calls.append(call)
        node = call.args[0]
    gate, second, activation, first, means = calls
    squeeze, excite = arguments_of(first), arguments_of(second)
    parts = [squeeze["weight"], squeeze["bias"], excite["weight"], excite["bias"]]
    tensors = [one for one in parts if one is not None]
    fits = (
        node is image and value.dim() == 4 and _is_over_points(means)
        and isinstance(value.shape[1], int) and value.shape[1] >= LEAST_CHANNELS
        # A row for each image, of a number for each channel, and not otherwise divided.
        and _has_sizes(squeeze["input"], value.shape[:2]) and _has_sizes(second, value.shape[:2])
        and _has_sizes(gates, (*value.shape[:2], 1, 1))
        and value.dtype in _DTYPES
        and all(one.meta["val"].dtype is value.dtype for one in tensors)
        and all(state_name(program, skip_shapes(one)) for one in tensors)
        and writes.keys().isdisjoint(map(skip_shapes, tensors))
        and all(is_constant(program, parts[one], writes) for one in (1, 3) if parts[one])
        and all(writes.get(one, one) in inside for one in inside)
        # Whoever writes to the image later changes what the product sees, and not the means.
        and not is_written_behind(image, writes)
    )  # fmt: skip
    if not fits:
        return None
    return _Block(
        image, parts[0], parts[1], parts[2], parts[3],
        PLACES[activation.target], PLACES[gate.target], tuple(inside),
    )  # fmt: skip


def _enter(
    node: object, targets: Collection[object], inside: list[torch.fx.Node]
) -> torch.fx.Node | None:
    """Return the call of one of `targets` whose result `node` is in whatever shape, if it is one.

    What lies on the way is added to `inside`, and has no other user.
    """
    while isinstance(node, torch.fx.Node) and len(node.users) == 1:
        inside.append(node)
        if node.target in targets:
            return node
        if node.target not in SHAPES:
            break
        node = node.args[0]
    return None


def _has_sizes(node: torch.fx.Node, sizes: Sequence[int]) -> bool:
    """Return whether a tensor certainly has these sizes, whatever the input."""
    found = node.meta["val"].shape
    return len(found) == len(sizes) and all(
        statically_known_true(one == other) for one, other in zip(found, sizes, strict=True)
    )


def _is_over_points(means: torch.fx.Node) -> bool:
    """Return whether an average is that of all of an image's points."""
    if means.target is _ATEN.mean.dim:
        arguments = arguments_of(means)
        axes = arguments["dim"] or ()
        return arguments["dtype"] is None and sorted(axis % 4 for axis in axes) == [2, 3]
    return all(size == 1 for size in arguments_of(means)["output_size"])
