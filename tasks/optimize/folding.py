"""Folds a graph to its modules, and says what a pass changed in each, for a picture of both.

An operator belongs to the module that called it; one that was called by none (a function in the
model's own forward) to that whose weights it reads, or else to that which feeds it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch.fx
from torch.export import ExportedProgram

from handoff.artifacts.release.evidence import (
    INPUTS,
    MODEL,
    OUTPUTS,
    FoldedGraph,
    FoldedGraphs,
    FoldedModule,
    ModuleChange,
    PassEffect,
)

AnyProgram = torch.fx.GraphModule | ExportedProgram

BOXES_AT_MOST = 20
_KINDS_AT_MOST = 5
_CHANGES_AT_MOST = 20
_NAME_AT_MOST = 60
# What torch.export's node metadata hook writes where a node that it made belongs to no module.
_NO_MODULE = "_empty_nn_module_stack"


class ModuleMemory:
    """Remembers to which module each operator belonged when it was first seen.

    A pass takes away what that was read off (a folded constant's weight), and keeps names.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._seen: dict[str, dict[str, str]] = {}

    def scopes_of(self, program: AnyProgram) -> dict[str, str]:
        """Return the path of each node's module, `(model)` where none is known."""
        # Both levels name their nodes alike, and mean others.
        level = "aten" if isinstance(program, ExportedProgram) else "fx"
        seen = self._seen.setdefault(level, {})
        scopes = _derive_scopes(program, seen)
        seen.update(scopes)
        return scopes


def changes_between(
    before: AnyProgram, after: AnyProgram, memory: ModuleMemory
) -> tuple[ModuleChange, ...]:
    """Return which operators `after` lacks and which it has more, by module.

    Nodes are matched by name, which a pass keeps for what it doesn't make again; what it does make
    again in the same module and of the same kind is no change.
    """
    was, now = memory.scopes_of(before), memory.scopes_of(after)
    removed = _count_operators(before, was, without=now)
    added = _count_operators(after, now, without=was)
    unchanged = removed & added
    removed, added = removed - unchanged, added - unchanged
    paths = dict.fromkeys(path for path, _ in [*removed, *added])
    return tuple(
        ModuleChange(path, _kinds_of(path, removed), _kinds_of(path, added)) for path in paths
    )


@dataclass(frozen=True)
class _ScopedProgram:
    """A program, and the path of each node's module."""

    program: AnyProgram
    scopes: dict[str, str]


def fold_evidence(
    effects: Iterable[PassEffect],
    delivered: AnyProgram,
    compiled: AnyProgram,
    memory: ModuleMemory,
) -> tuple[tuple[PassEffect, ...], FoldedGraphs]:
    """Return the effects by the boxes of the folded graphs, and those graphs.

    No graph has more than `BOXES_AT_MOST` modules.
    """
    programs = [_ScopedProgram(one, memory.scopes_of(one)) for one in (delivered, compiled)]
    box_of = _choose_boxes(programs)
    folded = tuple(replace(one, changes=_fold_changes(one.changes, box_of)) for one in effects)
    return folded, FoldedGraphs(*(_fold_program(scoped, box_of) for scoped in programs))


def _fold_changes(
    changes: Iterable[ModuleChange], box_of: Callable[[str], str]
) -> tuple[ModuleChange, ...]:
    removed: dict[str, Counter[str]] = {}
    added: dict[str, Counter[str]] = {}
    for change in changes:
        box = box_of(change.path)
        removed.setdefault(box, Counter()).update(change.removed)
        added.setdefault(box, Counter()).update(change.added)
    return tuple(
        ModuleChange(box, _most_frequent(removed[box]), _most_frequent(added[box]))
        for box in list(removed)[:_CHANGES_AT_MOST]
    )


def _kinds_of(path: str, counts: Counter[tuple[str, str]]) -> dict[str, int]:
    return {kind: count for (module, kind), count in counts.items() if module == path}


def _count_operators(
    program: AnyProgram, scopes: dict[str, str], *, without: dict[str, str]
) -> Counter[tuple[str, str]]:
    """Count (module, kind) of the operators whose names `without` lacks."""
    new = [n for n in program.graph.nodes if _is_operator(n) and n.name not in without]
    return Counter((scopes[node.name], _operator_name(program, node)) for node in new)


def _fold_program(scoped: _ScopedProgram, box_of: Callable[[str], str]) -> FoldedGraph:
    program, scopes = scoped.program, scoped.scopes
    index_of: dict[str, int] = {}
    kinds: list[Counter[str]] = []
    feeds: list[set[int]] = []
    inputs = set(_user_inputs(program))
    box_index: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            box, kind = INPUTS, node.name
        elif node.op == "output":
            box, kind = OUTPUTS, ""
        elif _is_operator(node):
            box, kind = box_of(scopes[node.name]), _operator_name(program, node)
        else:
            continue
        index = index_of.setdefault(box, len(index_of))
        if index == len(kinds):
            kinds.append(Counter())
            feeds.append(set())
        if kind:
            kinds[index][kind] += 1
        box_index[node.name] = index
        for source in node.all_input_nodes:
            if box_index.get(source.name, index) != index:
                feeds[box_index[source.name]].add(index)
    modules = (
        FoldedModule(path, _most_frequent(kinds[index]), tuple(sorted(feeds[index])))
        for path, index in index_of.items()
    )
    return FoldedGraph(len(program.graph.nodes), tuple(modules))


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    """Return the most frequent kinds; the others together."""
    most = dict(counts.most_common(_KINDS_AT_MOST))
    others = sum(counts.values()) - sum(most.values())
    return most | ({"other": others} if others else {})


def _choose_boxes(programs: Sequence[_ScopedProgram]) -> Callable[[str], str]:
    """Return what gives a module's box: its path, cut where all programs have few enough."""
    paths_of_each = [
        list(dict.fromkeys(one.scopes[node.name] for node in nodes if _is_operator(node)))
        for one in programs
        for nodes in [one.program.graph.nodes]
    ]
    depths = (path.count(".") + 1 for paths in paths_of_each for path in paths)
    for depth in range(max(depths, default=1), 0, -1):
        boxes_of_each = [{_truncate(path, depth) for path in paths} for paths in paths_of_each]
        if all(len(boxes) <= BOXES_AT_MOST for boxes in boxes_of_each):
            return lambda path: _truncate(path, depth)
    # Too many even at the top: neighbours share a box.
    names = list(dict.fromkeys(_truncate(path, 1) for paths in paths_of_each for path in paths))
    size = -(-len(names) // BOXES_AT_MOST)
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    shared = {name: f"{group[0]} ... {group[-1]}" for group in groups for name in group}
    return lambda path: shared.get(_truncate(path, 1), MODEL)[:_NAME_AT_MOST]


def _truncate(path: str, depth: int) -> str:
    return ".".join(path.split(".")[:depth])[:_NAME_AT_MOST]


def _is_operator(node: torch.fx.Node) -> bool:
    # Taking a tuple apart computes nothing.
    return node.op.startswith("call_") and not (
        node.target is operator.getitem and isinstance(node.args[1], int)
    )


def _user_inputs(program: AnyProgram) -> Iterable[str]:
    if isinstance(program, ExportedProgram):
        return map(str, program.graph_signature.user_inputs)
    return (node.name for node in program.graph.find_nodes(op="placeholder"))


def _derive_scopes(program: AnyProgram, seen: Mapping[str, str]) -> dict[str, str]:
    weights = _weight_owners(program)
    scopes: dict[str, str] = {}
    position = {node.name: number for number, node in enumerate(program.graph.nodes)}
    for node in program.graph.nodes:
        sources = [source.name for source in node.all_input_nodes]
        owners = [owner for name in sources if (owner := weights.get(name, ""))]
        fed_by = [name for name in sources if name in scopes and name not in weights]
        # The latest of them: what a residual connection adds to, not what it brings along.
        fed_by.sort(key=position.__getitem__)
        known = [scope for source in fed_by if (scope := scopes[source]) != MODEL]
        derived = _module_of(node) or (owners or known or [MODEL])[-1]
        scopes[node.name] = seen.get(node.name, derived)
    return scopes


def _module_of(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {}
    paths = (str(entry[0]) for entry in reversed(stack.values()))
    path = next((path for path in paths if not path.startswith(_NO_MODULE)), "")
    return path.removeprefix("L['self'].").strip(".")


def _weight_owners(program: AnyProgram) -> dict[str, str]:
    """Return for each node that stands for a weight the path of the module that holds it."""
    if isinstance(program, ExportedProgram):
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    else:
        names = {node.name: str(node.target) for node in program.graph.find_nodes(op="get_attr")}
    return {name: path.rpartition(".")[0] for name, path in names.items()}


def _operator_name(program: AnyProgram, node: torch.fx.Node) -> str:
    if node.op == "call_module" and isinstance(program, torch.fx.GraphModule):
        return type(program.get_submodule(str(node.target))).__name__
    if isinstance(node.target, str):
        return node.target[:_NAME_AT_MOST]
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))[:_NAME_AT_MOST]
