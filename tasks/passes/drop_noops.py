"""Drop what does nothing in inference: dropout, identity, losses."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.fx
from torch import nn
from torch.nn.modules import dropout, loss

from tasks.passes.base import Pass, PassBroken

DROPPED_MODULES = (nn.Identity, dropout._DropoutNd, loss._Loss)
_FUNCTIONAL_DROPOUT = {
    nn.functional.dropout,
    nn.functional.dropout1d,
    nn.functional.dropout2d,
    nn.functional.dropout3d,
    nn.functional.alpha_dropout,
    nn.functional.feature_alpha_dropout,
}


class DropInferenceNoops(Pass[torch.fx.GraphModule]):
    """Replace dropout, identity and loss modules, and inactive functional dropout, by their input.

    Before: `x -> dropout -> linear -> identity -> loss(·, label)`. After: `x -> linear`.

    A functional dropout is dropped only where its `training` argument is the constant False: one
    that is active in inference is a fault of the delivery, not something to optimize away.
    """

    name: ClassVar[str] = "drop-inference-noops"
    level: ClassVar[Literal["fx", "aten"]] = "fx"

    def requires(self, program: torch.fx.GraphModule) -> None:
        """Raise `PassBroken` for a module in training mode, where dropout does something."""
        if program.training:
            raise PassBroken(f"{self.name} expects a module in evaluation mode")

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Drop the nodes; the modules they called go with them."""
        doomed = [node for node in program.graph.nodes if is_inference_noop(program, node)]
        for node in doomed:
            kept = node.args[0] if node.args else _input_of(node)
            node.replace_all_uses_with(kept)
            program.graph.erase_node(node)
        if doomed:
            program.delete_all_unused_submodules()
        return bool(doomed)

    def ensures(self, program: torch.fx.GraphModule) -> None:
        """Raise `PassBroken` if one is left."""
        left = [node.name for node in program.graph.nodes if is_inference_noop(program, node)]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")


def _input_of(node: torch.fx.Node) -> object:
    # By keywords, and a loss's label may come first.
    return node.kwargs.get("input", next(iter(node.kwargs.values())))


def is_inference_noop(program: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Tell whether `node` returns its first argument unchanged when nothing is being trained."""
    if node.op == "call_module":
        return isinstance(program.get_submodule(str(node.target)), DROPPED_MODULES)
    if node.op == "call_function" and node.target in _FUNCTIONAL_DROPOUT:
        # The default is training=True but for the feature variants, so only a constant counts.
        training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training")
        return training is False
    return False
