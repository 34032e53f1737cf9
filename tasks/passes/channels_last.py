"""Lay images out with their channels last."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from tasks.passes.base import NodePass
from tasks.passes.layout import relay
from tasks.passes.purity import is_view, last_writes
from tasks.passes.state import put_state, state_name

_ATEN = torch.ops.aten
# Views of strides of any kind; others, a reshape among them, are copies of some.
_ALWAYS_VIEWS = {_ATEN.unsqueeze.default, _ATEN.squeeze.default, _ATEN.squeeze.dim,
                 _ATEN.squeeze.dims, _ATEN.transpose.int, _ATEN.permute.default,
                 _ATEN.select.int, _ATEN.slice.Tensor}  # fmt: skip
_CONVOLUTIONS = {_ATEN.conv2d.default, _ATEN.conv2d.padding}
_LAST = {"memory_format": torch.channels_last}


class ChannelsLast(NodePass[ExportedProgram]):
    """Give two-dimensional convolutions weights and images whose channels lie beside each other.

    Before: `y = conv2d(x, W)`. After: `y = conv2d(x.contiguous(channels_last), W')`, with `W'` laid
    out the same; what follows keeps the layout, and outputs of the model get their own back.

    Conditions: the weights are the program's own, and nothing is written to after a view of it was
    made. No value changes; whether it is faster depends on model and machine, so let a search
    decide.
    """

    name: ClassVar[str] = "channels-last"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions that have the other layout."""
        writes = last_writes(program.graph)
        if any(_may_copy(node) and node < writer for node, writer in writes.items()):
            # In another layout it might be a copy, and the write be lost.
            return []
        return [
            node for node in program.graph.nodes
            if node.target in _CONVOLUTIONS
            and isinstance(weight := node.args[1], torch.fx.Node)
            and (name := state_name(program, weight))
            and not program.state_dict[name].is_contiguous(memory_format=torch.channels_last)
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Change the layouts of its weights and of its input."""
        weight = node.args[1]
        assert isinstance(weight, torch.fx.Node)
        _lay_out(program, weight)
        relay(node, node.args[0], _LAST)

    def clean_up(self, program: ExportedProgram) -> None:
        """Make a reshape of each view, which needs a certain layout, and restore the outputs'."""
        for node in program.graph.find_nodes(op="call_function", target=_ATEN.view.default):
            node.target = _ATEN.reshape.default
        _restore_outputs(program)


def _may_copy(node: torch.fx.Node) -> bool:
    target = node.target
    is_written_by_it = isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
    return (
        node.op == "call_function" and is_view(node)
        and not is_written_by_it and target not in _ALWAYS_VIEWS
    )  # fmt: skip


def _lay_out(program: ExportedProgram, weight: torch.fx.Node) -> None:
    name = state_name(program, weight)
    old = program.state_dict[name]
    if not old.is_contiguous(memory_format=torch.channels_last):
        put_state(program, name, old.detach().clone(memory_format=torch.channels_last))
        weight.meta["val"] = weight.meta["val"].contiguous(**_LAST)


def _restore_outputs(program: ExportedProgram) -> None:
    output = program.graph.output_node()
    for value in list(output.all_input_nodes):
        kept = value.meta.get("val")
        if isinstance(kept, torch.Tensor) and kept.dim() == 4 and value.op != "placeholder":
            copied = relay(output, value, {"memory_format": torch.contiguous_format})
            program.graph_signature.replace_all_uses(value.name, copied.name)
