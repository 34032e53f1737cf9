"""Calls of operators in an ATen graph: read by name, added with what they return."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return all arguments of an operator's call by name, defaults included."""
    root = node.graph.owning_module
    assert root is not None
    found = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    assert found is not None
    return found.kwargs


def add_call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:  # noqa: ANN401
    """Call `target` where the graph inserts at the moment; the node says what it returns."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*torch.fx.map_arg(args, lambda one: one.meta["val"]))
    return node


def describe_as(new: torch.fx.Node, old: torch.fx.Node) -> None:
    """Let `new`, which takes the place of `old`, tell its origin; what it returns stays its own."""
    new.meta.update({name: told for name, told in old.meta.items() if name != "val"})
