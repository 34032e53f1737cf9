"""What a table of conformance says of a graph."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree


def calls_of(program: ExportedProgram) -> frozenset[str]:
    """Return the graph's operators with the dtypes of their tensors: `aten.amax.default(uint8)`.

    Several dtypes are in the arguments' order, each as often as it comes.
    """
    found = set()
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        values = [
            leaf.meta.get("val") for leaf in pytree.tree_leaves((node.args, node.kwargs))
            if isinstance(leaf, torch.fx.Node)
        ]  # fmt: skip
        kinds = [
            str(value.dtype).removeprefix("torch.")
            for value in values if isinstance(value, torch.Tensor)
        ]  # fmt: skip
        found.add(f"{node.target}({', '.join(kinds)})")
    return frozenset(found)
