"""Write clamping activations so that a compiler that fuses them keeps NaN."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.state import replace_node

_ATEN = torch.ops.aten
# What each keeps its argument between; `hardtanh`'s bounds are arguments.
_NAMES = {
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "hardtanh": (-1.0, 1.0),
    "hardsigmoid": (0.0, 6.0),
}
# By operator; `relu_` and the like write their result to where their argument is.
_BOUNDS: dict[Any, tuple[float, float]] = {
    getattr(_ATEN, name + mark).default: bounds
    for name, bounds in _NAMES.items()
    for mark in ("", "_")
}
_SIGMOIDS = {_ATEN.hardsigmoid.default, _ATEN.hardsigmoid_.default}


class CarryNan(NodePass[ExportedProgram]):
    """Compare where clamping activations take a maximum, so that NaN stays NaN.

    Before: `y = relu(x)`. After: `y = where(x <= 0, 0, x)`; `relu6`, `hardtanh` and `hardsigmoid`
    likewise, and what is computed in place is written there. With `freezing`, Inductor lets oneDNN
    clamp at the end of a convolution or a linear layer, whose maximum of NaN and 0 is 0. What
    compares stays outside of that, in a loop of its own, so name it where a package has to carry
    NaN and is to be frozen. No value changes.
    """

    name: ClassVar[str] = "carry-nan"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the activations of floating-point numbers."""
        return [
            node for node in program.graph.nodes
            if node.target in _BOUNDS and node.meta["val"].is_floating_point()
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it."""
        low, high = _BOUNDS[node.target]
        argument, *bounds = node.args
        value = argument
        given = dict(zip(("min_val", "max_val"), bounds, strict=False)) | dict(node.kwargs)
        low, high = float(given.get("min_val", low)), float(given.get("max_val", high))  # type: ignore[arg-type]
        is_sigmoid = node.target in _SIGMOIDS
        with node.graph.inserting_before(node):
            if is_sigmoid:
                value = _add_call(node, _ATEN.add.Tensor, value, 3.0)
            value = _add_bound(node, value, _ATEN.le.Scalar, low)
            if high != math.inf:
                value = _add_bound(node, value, _ATEN.ge.Scalar, high)
            if is_sigmoid:
                value = _add_call(node, _ATEN.div.Tensor, value, 6.0)
            if node.target._schema.is_mutable:  # type: ignore[union-attr]
                # Others may look at that memory, and compilers elide what nobody looks at.
                value = _add_call(node, _ATEN.copy_.default, argument, value)
        assert isinstance(value, torch.fx.Node)
        value.meta.update(node.meta)
        replace_node(program, node, value)


def _add_bound(node: torch.fx.Node, value: object, beyond: Any, bound: float) -> torch.fx.Node:  # noqa: ANN401 - an operator
    is_beyond = _add_call(node, beyond, value, bound)
    is_beyond.meta["val"] = node.meta["val"].to(torch.bool)
    return _add_call(node, _ATEN.where.ScalarSelf, is_beyond, bound, value)


def _add_call(node: torch.fx.Node, operator: Any, *arguments: Any) -> torch.fx.Node:  # noqa: ANN401
    call = node.graph.call_function(operator, arguments)
    call.meta["val"] = node.meta["val"]
    return call
