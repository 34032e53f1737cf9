"""Which nodes of a graph compute the same from the same, so that they may be merged or folded.

A graph that torch.export captured may still write to tensors in place (`relu_`), through any view
of them. And where a size is known only when it is computed (`nonzero`, `x[mask]`, `item()`), export
has given it a symbol, which the shapes of everything behind it are written in: two such calls are
two symbols, even on equal arguments, and without the call its symbol would be nobody's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_ATEN = torch.ops.aten
# Without values of their own, or no function of what they are given.
_UNINITIALISED = {_ATEN.empty, _ATEN.new_empty, _ATEN.empty_like, _ATEN.empty_strided,
                  _ATEN.new_empty_strided, _ATEN.empty_permuted}  # fmt: skip
_SCALAR_MODULES = {"_operator", "math", "builtins"}


def pure_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the calls that are functions of their arguments alone.

    No random numbers, no uninitialised memory, no side effect, no size that is known only then;
    and neither the result nor an argument is, or shares memory with, a tensor that is written to in
    place somewhere.
    """
    written = written_tensors(graph)
    return {
        node for node in graph.nodes
        if _is_function(node) and not makes_symbols(node)
        and node not in written and written.isdisjoint(node.all_input_nodes)
    }  # fmt: skip


def unbacked_symbols(node: torch.fx.Node) -> set[str]:
    """Return the symbols in a node's result that stand for what is known only when it is run."""
    return {str(symbol) for symbol in free_unbacked_symbols(node.meta.get("val"))}


def makes_symbols(node: torch.fx.Node) -> bool:
    """Return whether the call's result has a size, or is a number, that no argument of it has."""
    known = [unbacked_symbols(argument) for argument in node.all_input_nodes]
    return bool(unbacked_symbols(node).difference(*known))


def is_view(node: torch.fx.Node) -> bool:
    """Return whether the call's result shares memory with an argument."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem
    return any(value.alias_info is not None for value in target._schema.returns)


def _is_function(node: torch.fx.Node) -> bool:
    target = node.target
    if node.op != "call_function":
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__module__", "") in _SCALAR_MODULES
    return (
        not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target.overloadpacket not in _UNINITIALISED
        and bool(target._schema.returns)
        and not node.is_impure()
    )


def written_tensors(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return every node whose memory is written to, whichever of its views is."""
    return set(last_writes(graph))


def last_writes(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return, for every node whose memory is written to, the last call that does it."""
    family: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    writers: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    for node in graph.nodes:
        members = {node}
        for relative, is_written in _aliases_and_writes(node):
            members |= family[relative]
            if is_written:
                writers.append((relative, node))
        for member in members:
            family[member] = members
    return {member: writer for relative, writer in writers for member in family[relative]}


def is_written_behind(node: torch.fx.Node, writes: Mapping[torch.fx.Node, torch.fx.Node]) -> bool:
    """Return whether a tensor holds something else later on, `writes` being the last writes."""
    return node in writes and node < writes[node]


def _aliases_and_writes(node: torch.fx.Node) -> list[tuple[torch.fx.Node, bool]]:
    """Return the arguments that the result may share memory with or that the call writes to."""
    if node.op != "call_function" or getattr(node.target, "__module__", "") in ("math",):
        return []
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        # A part of several results; or a higher-order operator, of which nothing is known.
        writes = not _is_function(node)
        return [(argument, writes) for argument in node.all_input_nodes]
    arguments = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False))
    aliased = any(value.alias_info is not None for value in target._schema.returns)
    # In evaluation mode it gives its input back, which its schema doesn't say.
    aliased = aliased or "dropout" in target._schema.name
    relatives = []
    for argument in target._schema.arguments:
        info = argument.alias_info
        writes = info is not None and info.is_write
        if writes or (aliased and (info is not None or "dropout" in target._schema.name)):
            value = arguments.get(argument.name, node.kwargs.get(argument.name))
            relatives += [(n, writes) for n in _nodes_in(value)]
    return relatives


def _nodes_in(value: object) -> list[torch.fx.Node]:
    if isinstance(value, torch.fx.Node):
        return [value]
    return (
        [n for n in value if isinstance(n, torch.fx.Node)]
        if isinstance(value, (list, tuple))
        else []
    )
