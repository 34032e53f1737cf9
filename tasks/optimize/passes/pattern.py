"""Replace a pattern of a few operators by one operator: what a pass of that kind has to say."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.optimize.passes.purity import pure_nodes


class PatternPass(Pass[ExportedProgram]):
    """Replace each occurrence of `pattern` by a call of `operator`.

    `pattern` is a function over `torch.ops.aten` that returns one result or a tuple; it is traced
    with `torch.fx`. Its parameters stand for anything, tensors or numbers, and a number written in
    it for itself. Values inside the pattern that something else uses keep it from being found,
    results may be used by anybody. The operator is called with those of the pattern's parameters
    that it has itself, by name, and returns as many results.

    Conditions: nothing that is replaced or moved writes to a tensor, or is written to. What else
    has to hold is said by `fits`.
    """

    pattern: ClassVar[Callable[..., Any]]
    operator: ClassVar[torch._ops.OpOverload]
    # What the operator is given besides.
    constants: ClassVar[Mapping[str, Any]] = {}

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Return whether the operator may stand for the pattern with these arguments, by name.

        Tensors are given as nodes, whose `meta["val"]` has their shape and dtype.
        """
        return bool(given)

    def call(self, program: ExportedProgram) -> bool:
        """Replace what is found, from the first to the last."""
        pattern = torch.fx.Tracer().trace(self.pattern)
        names = list(inspect.signature(self.pattern).parameters)
        found = SubgraphMatcher(pattern).match(program.graph)
        replaced: dict[torch.fx.Node, torch.fx.Node] = {}
        for match in found:
            # One match's result may be what another is given.
            inputs = [replaced.get(node, node) for node in match.placeholder_nodes]
            replaced |= self._replace(program, dict(zip(names, inputs, strict=True)), match)
        if replaced:
            program.graph.eliminate_dead_code()
        return bool(replaced)

    def _replace(
        self, program: ExportedProgram, bindings: dict[str, Any], match: InternalMatch
    ) -> dict[torch.fx.Node, torch.fx.Node]:
        """Replace one match; return the new node for each old result, none where it may not be."""
        parameters = [part.name for part in self.operator._schema.arguments]
        arguments = {name: bindings[name] for name in parameters if name in bindings}
        arguments |= self.constants
        results = match.returning_nodes
        placeholders = program.graph.find_nodes(op="placeholder")
        inputs = [value for value in arguments.values() if isinstance(value, torch.fx.Node)]
        last = max(placeholders[-1], *inputs)
        early = _users_before(program.graph, results, last)
        inside = {node for part, node in match.nodes_map.items() if part.op == "call_function"}
        if not self.fits(bindings) or not {*early, *inside} <= pure_nodes(program.graph):
            return {}
        parts = _insert_call(last, self.operator, arguments, results)
        for old, new in zip(results, parts, strict=True):
            old.replace_all_uses_with(new)
            program.graph_signature.replace_all_uses(old.name, new.name)
        for node in reversed(early):
            parts[-1].append(node)
        return dict(zip(results, parts, strict=True))


def _users_before(
    graph: torch.fx.Graph, results: list[torch.fx.Node], last: torch.fx.Node
) -> list[torch.fx.Node]:
    """Return what uses the results, directly or not, and stands before `last` or is it."""
    users: list[torch.fx.Node] = []
    for node in graph.nodes:
        if not {*results, *users}.isdisjoint(node.all_input_nodes):
            users.append(node)
        if node is last:
            break
    return users


def _split_arguments(
    target: torch._ops.OpOverload, arguments: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by place as far as there are no gaps, and by name behind one."""
    placed = itertools.takewhile(
        lambda part: part.name in arguments and not part.kwarg_only, target._schema.arguments
    )
    names = [part.name for part in placed]
    rest = {name: value for name, value in arguments.items() if name not in names}
    return tuple(arguments[name] for name in names), rest


def _insert_call(
    last: torch.fx.Node,
    target: torch._ops.OpOverload,
    arguments: dict[str, Any],
    results: list[torch.fx.Node],
) -> list[torch.fx.Node]:
    """Put the call behind `last`; return the nodes of its results, described as the old ones."""
    graph = last.graph
    with graph.inserting_after(last):
        parts = [graph.call_function(target, *_split_arguments(target, arguments))]
    if len(results) > 1:
        tuple_node = parts.pop()
        tuple_node.meta["val"] = tuple(node.meta["val"] for node in results)
        for index in range(len(results)):
            with graph.inserting_after(parts[-1] if parts else tuple_node):
                parts.append(graph.call_function(operator.getitem, (tuple_node, index)))
    for old, new in zip(results, parts, strict=True):
        new.meta = dict(old.meta)
    return parts
