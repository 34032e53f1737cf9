"""Lay images out with their channels last."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram

from handoff.tasks.optimize.kernels.channels_last import MOST_CHANNELS
from handoff.tasks.optimize.passes.layout import LayoutPass, change_layout
from handoff.tasks.optimize.passes.state import add_call, put_state, state_name

_ATEN = torch.ops.aten
_CONVOLUTIONS = {_ATEN.conv2d.default, _ATEN.conv2d.padding}
_LAST = {"memory_format": torch.channels_last}
_OPERATOR = torch.ops.handoff.channels_last.default


class ChannelsLast(LayoutPass):
    """Give two-dimensional convolutions weights and images whose channels lie beside each other.

    Before: `y = conv2d(x, W)`. After: `y = conv2d(x.contiguous(channels_last), W')`, with `W'` laid
    out the same; what follows keeps the layout, and outputs of the model get their own back.
    Pictures of two to four channels are rearranged by a C++ function of our own inside the package,
    where Inductor's code moves number by number.

    Conditions: the weights are the program's own, and nothing is written to after a view of it was
    made. No value changes; whether it is faster depends on model and machine, so let a search
    decide.
    """

    name: ClassVar[str] = "channels-last"

    def choose(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions that have the other layout."""
        return [
            node for node in program.graph.nodes
            if node.target in _CONVOLUTIONS
            and isinstance(image := node.args[0], torch.fx.Node)
            # An image without a batch has no such layout.
            and image.meta["val"].dim() == 4
            and isinstance(weight := node.args[1], torch.fx.Node)
            and (name := state_name(program, weight))
            and not program.state_dict[name].is_contiguous(memory_format=torch.channels_last)
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Change the layouts of its weights and of its input."""
        weight = node.args[1]
        assert isinstance(weight, torch.fx.Node)
        name = state_name(program, weight)
        old = program.state_dict[name]
        if not old.is_contiguous(memory_format=torch.channels_last):
            put_state(program, name, old.detach().clone(memory_format=torch.channels_last))
            weight.meta["val"] = weight.meta["val"].contiguous(**_LAST)
        image = node.args[0]
        assert isinstance(image, torch.fx.Node)
        if _is_picture(image):
            with node.graph.inserting_before(node):
                copied = add_call(node.graph, _OPERATOR, (image, False))
            node.replace_input_with(image, copied)
        else:
            change_layout(node, image, _LAST)


def _is_picture(image: torch.fx.Node) -> bool:
    """Return whether our own function can rearrange an image."""
    value = image.meta["val"]
    channels = value.shape[1]
    return (
        isinstance(channels, int) and 1 < channels <= MOST_CHANNELS
        and value.dtype is torch.float32 and is_contiguous_or_false(value)
    )  # fmt: skip
