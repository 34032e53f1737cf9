"""What a table of conformance says of a graph."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree


def calls_of(program: ExportedProgram) -> frozenset[str]:
    """Return the graph's operators with the dtypes of their tensors: `aten.amax.default(uint8)`.

    Several dtypes are in the arguments' order, each as often as it comes.
    """
    return frozenset(filter(None, map(call_of, program.graph.nodes)))


def call_of(node: torch.fx.Node) -> str:
    """Return a node's operator with the dtypes of its tensors; '' where it calls none."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    values = [
        leaf.meta.get("val") for leaf in pytree.tree_leaves((node.args, node.kwargs))
        if isinstance(leaf, torch.fx.Node)
    ]  # fmt: skip
    kinds = [
        str(value.dtype).removeprefix("torch.")
        for value in values if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    return f"{node.target}({', '.join(kinds)})"
