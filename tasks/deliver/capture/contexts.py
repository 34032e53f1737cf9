"""Takes the contexts out of an exported graph that change nothing when a package is run.

`torch.export` keeps `with torch.no_grad()` and `with torch.autocast(enabled=False)` as operators of
higher order around subgraphs. A package computes without gradients and without autocast, so what
was inside computes the same outside.
"""

from __future__ import annotations

import operator

import torch
import torch.fx


def inline_idle_contexts(module: torch.fx.GraphModule) -> None:
    """Put the subgraphs of contexts that change nothing in their calls' places, in `module`."""
    graph = module.graph
    while True:
        found = [node for node in graph.nodes if _subgraph(module, node) is not None]
        if not found:
            break
        for node in found:
            _inline(module, node)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users and isinstance(getattr(module, str(node.target), None), torch.nn.Module):
            graph.erase_node(node)
    module.delete_all_unused_submodules()
    graph.lint()
    module.recompile()


def _subgraph(
    module: torch.fx.GraphModule, node: torch.fx.Node
) -> tuple[torch.fx.GraphModule, tuple[torch.fx.node.Argument, ...]] | None:
    """Return what an idle context holds and is called with; None for every other node."""
    match str(node.target), node.args:
        case "wrap_with_set_grad_enabled", (bool(), torch.fx.Node() as held, *args):
            pass
        case "wrap_with_autocast", (_, _, False, _, torch.fx.Node() as held, *args):
            pass
        case _:
            return None
    found = getattr(module, str(held.target), None) if held.op == "get_attr" else None
    if node.kwargs or not isinstance(found, torch.fx.GraphModule):
        return None
    return found, tuple(args)


def _inline(module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    held = _subgraph(module, node)
    assert held is not None
    inner, args = held
    placeholders = inner.graph.find_nodes(op="placeholder")
    places: dict[torch.fx.Node, torch.fx.Node] = {}
    for placeholder, argument in zip(placeholders, args, strict=True):
        assert isinstance(argument, torch.fx.Node)
        places[placeholder] = argument
    with module.graph.inserting_before(node):
        result = module.graph.graph_copy(inner.graph, places)
    values = result if isinstance(result, (tuple, list)) else (result,)
    for user in list(node.users):
        assert user.op == "call_function"
        assert user.target is operator.getitem
        value = values[user.args[1]]  # type: ignore[index]
        assert isinstance(value, torch.fx.Node)
        user.replace_all_uses_with(value)
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    for name in {str(n.target) for n in inner.graph.find_nodes(op="get_attr")}:
        setattr(module, name, getattr(inner, name))
