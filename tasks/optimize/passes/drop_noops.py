"""Drop what does nothing in inference: dropout, identity, losses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch import nn
from torch.nn.modules import dropout, loss

from handoff.tasks.optimize.passes.base import NodePass, PassBroken

DROPPED_MODULES = (nn.Identity, dropout._DropoutNd, loss._Loss)
_FUNCTIONAL_DROPOUT = {
    nn.functional.dropout,
    nn.functional.dropout1d,
    nn.functional.dropout2d,
    nn.functional.dropout3d,
    nn.functional.alpha_dropout,
    nn.functional.feature_alpha_dropout,
}


class DropInferenceNoops(NodePass[torch.fx.GraphModule]):
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

    def find(self, program: torch.fx.GraphModule) -> list[torch.fx.Node]:
        """Return the nodes that do nothing in inference."""
        return [node for node in program.graph.nodes if is_inference_noop(program, node)]

    def change(self, program: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        """Let its input be used instead, and drop it."""
        # By keywords, and a loss's label may come first.
        source: Any = (
            node.args[0]
            if node.args
            else node.kwargs.get("input", next(iter(node.kwargs.values())))
        )
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)

    def clean_up(self, program: torch.fx.GraphModule) -> None:
        """Drop the modules that nothing calls any more."""
        program.delete_all_unused_submodules()


def is_inference_noop(program: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    """Return whether `node` returns its first argument unchanged when nothing is being trained."""
    if node.op == "call_module":
        return isinstance(program.get_submodule(str(node.target)), DROPPED_MODULES)
    if node.op == "call_function" and node.target in _FUNCTIONAL_DROPOUT:
        # The default is training=True but for the feature variants, so only a constant counts.
        training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training")
        return training is False
    return False
