"""What the passes share that lay tensors out otherwise."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.purity import is_view, last_writes

_ATEN = torch.ops.aten
# Views of strides of any kind; others, a reshape among them, are copies of some.
_ALWAYS_VIEWS = {_ATEN.unsqueeze.default, _ATEN.squeeze.default, _ATEN.squeeze.dim,
                 _ATEN.squeeze.dims, _ATEN.transpose.int, _ATEN.permute.default,
                 _ATEN.select.int, _ATEN.slice.Tensor}  # fmt: skip
# What reads memory by strides of its own: of another layout other numbers.
_STRIDED = (_ATEN.as_strided, _ATEN.as_strided_copy, _ATEN.as_strided_scatter, _ATEN.as_strided_)
_CONTIGUOUS = {"memory_format": torch.contiguous_format}


class LayoutPass(NodePass[ExportedProgram]):
    """A node pass behind which values lie otherwise in memory, except for the model's outputs.

    A client may read an output's memory without looking at its strides, so one that is contiguous
    stays so. Nothing is changed in a graph that writes to something after a view of it was made,
    since in another layout the view might be a copy, and the write be lost; nor in one that reads
    memory by strides of its own (`as_strided`).
    """

    level: ClassVar[Literal["fx", "aten"]] = "aten"

    @abstractmethod
    def choose(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the nodes to change, in the graph's order."""

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the nodes to change, of a graph in which layouts may change."""
        writes = last_writes(program.graph)
        if any(_may_copy(node) and node < writer for node, writer in writes.items()):
            return []
        if any(getattr(node.target, "overloadpacket", None) in _STRIDED
               for node in program.graph.nodes):  # fmt: skip
            return []
        return self.choose(program)

    def call(self, program: ExportedProgram) -> bool:
        """Change them all, and give the outputs the layouts that they had."""
        output = program.graph.output_node()
        was_contiguous = [_is_contiguous(value) for value in output.all_input_nodes]
        modified = super().call(program)
        if modified:
            _restore_contiguous(program, was_contiguous)
        return modified

    def clean_up(self, program: ExportedProgram) -> None:
        """Make a reshape of each view, which needs a certain layout."""
        for node in program.graph.find_nodes(op="call_function", target=_ATEN.view.default):
            node.target = _ATEN.reshape.default


def change_layout(user: torch.fx.Node, value: object, layout: dict[str, Any]) -> torch.fx.Node:
    """Let `user` take a copy of `value` in another layout; none is made where it has that one."""
    assert isinstance(value, torch.fx.Node)
    graph = user.graph
    with graph.inserting_before(user):
        copied = graph.call_function(_ATEN.contiguous.default, (value,), layout)
    copied.meta["val"] = value.meta["val"].contiguous(**layout)
    user.replace_input_with(value, copied)
    return copied


def _may_copy(node: torch.fx.Node) -> bool:
    target = node.target
    is_written_by_it = isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
    return (
        node.op == "call_function" and is_view(node)
        and not is_written_by_it and target not in _ALWAYS_VIEWS
    )  # fmt: skip


def _is_contiguous(node: torch.fx.Node) -> bool:
    """Return whether it is a tensor of two axes or more that certainly lies as its axes say."""
    tensor = node.meta.get("val")
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 1 and is_contiguous_or_false(tensor)


def _restore_contiguous(program: ExportedProgram, was_contiguous: list[bool]) -> None:
    """Make those outputs contiguous again that were.

    What lies how behind a change is not known: what the graph says of values further down is of
    before it. Where nothing is to do nothing is copied.
    """
    output = program.graph.output_node()
    for node, is_to_restore in zip(output.all_input_nodes, was_contiguous, strict=True):
        if is_to_restore and node.op != "placeholder":
            copied = change_layout(output, node, _CONTIGUOUS)
            program.graph_signature.replace_all_uses(node.name, copied.name)
