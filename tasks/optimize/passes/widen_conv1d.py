"""Compute one-dimensional convolutions as two-dimensional ones of height one."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.following import apply_activations, replace_chain
from handoff.tasks.optimize.passes.state import add_call, change_state, state_name

_ATEN = torch.ops.aten
_WIDER = {
    _ATEN.conv1d.default: _ATEN.conv2d.default,
    _ATEN.conv1d.padding: _ATEN.conv2d.padding,
}
_HEIGHT = 2


class WidenConv1d(NodePass[ExportedProgram]):
    """Give sequences a height of one, for which oneDNN's layouts of images then hold.

    Before: `y = conv1d(x, W)`. After: `y = conv2d(x.unsqueeze(2), W.unsqueeze(2)).squeeze(2)`,
    with the weights kept so; activations that follow come before the squeeze. Inductor packs the
    weights of two-dimensional convolutions alone, and only those can have their channels last:
    between two of one dimension, torch rearranges the whole sequence.

    Conditions: the weights are the program's own, and used nowhere else. No value changes.
    """

    name: ClassVar[str] = "widen-conv1d"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions of one dimension."""
        return [
            node for node in program.graph.nodes
            if node.target in _WIDER
            and node.meta["val"].dim() == 3
            and isinstance(weight := node.args[1], torch.fx.Node)
            and len(weight.users) == 1
            and (name := state_name(program, weight))
            and sum(spec.target == name for spec in program.graph_signature.input_specs) == 1
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it."""
        sequence, weight, *rest = node.args
        assert isinstance(sequence, torch.fx.Node)
        assert isinstance(weight, torch.fx.Node)
        value = program.state_dict[state_name(program, weight)].detach()
        change_state(program, weight, value.unsqueeze(_HEIGHT))
        weight.meta["val"] = weight.meta["val"].unsqueeze(_HEIGHT)
        unpadded: Any = "valid" if node.target is _ATEN.conv1d.padding else [0]
        defaults: list[Any] = [None, [1], unpadded, [1], 1]
        parameters: list[Any] = [*rest, *defaults[len(rest) :]]
        bias, stride, padding, dilation, groups = parameters
        padded = padding if isinstance(padding, str) else _add_height(padding, 0)
        wide: list[Any] = [_add_height(stride, 1), padded, _add_height(dilation, 1), groups]
        graph = node.graph
        with graph.inserting_before(node):
            image = graph.call_function(_ATEN.unsqueeze.default, (sequence, _HEIGHT))
            image.meta["val"] = sequence.meta["val"].unsqueeze(_HEIGHT)
            convolved = graph.call_function(_WIDER[node.target], (image, weight, bias, *wide))  # type: ignore[index]
            convolved.meta["val"] = node.meta["val"].unsqueeze(_HEIGHT)
        chain, image = apply_activations(node, convolved)
        with graph.inserting_before(chain[-1]):
            result = add_call(graph, _ATEN.squeeze.dim, (image, _HEIGHT))
        replace_chain(program, chain, result)


def _add_height(value: Any, height: int) -> list[int]:  # noqa: ANN401 - one number, or a list of it
    return [height, *(value if isinstance(value, (list, tuple)) else [value])]
