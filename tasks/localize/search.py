"""Finds the smallest part of a program that is wrong when it is compiled alone on right inputs.

What was learned about it (torch 2.15, x86): returning intermediate values changes what is compiled.
Each value that is returned is stored, and gets a second user, so a graph pass that wants a value
for itself no longer matches and two operators that were computed in one expression may not be any
more. An operator whose own lowering or decomposition is wrong stays wrong under that; a wrong
fusion or a wrong rewriting goes away. So all values at once are one compile that names the first
kind, and its going away is itself a finding. For the second kind values are returned at few places:
most of those don't fall into the pattern, and what lies between the last right one and the first
wrong one is the part.

An intermediate value alone is no proof: one may be a little more than twice as far from float64 as
eager and harmless. Therefore only values count that are about as far off, in units of eager's
error, as the output that was refused (`measure.threshold`); and no part is believed before it was
cut out and seen to be wrong by itself on the inputs that eager computes. Where the fault had gone
away with all values returned, no operator is tried alone: each has been seen to be right.

After the first wrong node nothing that is compared with float64 from the start says much. What a
node gives can be compared with what eager and float64 make of the very inputs that the package had
for it, though, as far as those were returned. That costs no compile, and proves less: the values
are those of a package that was compiled to return them.

What a table of the toolchain knows to be wrong is tried before all that: one small compile, which
on a large program takes a hundredth of compiling it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.conformance.known_faults import kind_of
from handoff.tasks.conformance.lookup import call_of
from handoff.tasks.localize.measure import JudgedOutput, judge, threshold
from handoff.tasks.localize.subgraph import computing_nodes, cut, is_tensor, record, writes
from handoff.tasks.localize.trials import BudgetSpent, PartResult, Trials
from handoff.tasks.verify.loading import Tensors

# All values, then each third from two places on (one of which spares any pair), then each eighth.
_PATTERNS = ((1, 0), (3, 0), (3, 1), (8, 0), (8, 4))
_MAX_SUSPECTS = 2
_MAX_KNOWN = 4
_REACHES = (1, 2, 4)
# What is written to a file to be compared; with more, fewer values are looked at.
_MAX_TAPPED_BYTES = 2 << 30


class Search:
    """Looks for the part in a program that is wrong; `final` is the output that shows it best."""

    def __init__(
        self, trials: Trials, program: ExportedProgram, inputs: Tensors, final: JudgedOutput
    ) -> None:
        """Compute what each node gives, by eager kernels, on inputs on which the fault shows."""
        self._trials, self._program, self._limit = trials, program, threshold(final)
        self._values = record(program, inputs)
        self._best: PartResult | None = None
        self._right_parts: set[frozenset[Node]] = set()
        self._other_faults: list[Node] = []
        # A fault that goes away when each operator's value is stored is in no operator alone.
        self._min_nodes = 1
        self.is_complete = False

    def find(self) -> PartResult | None:
        """Return the smallest part that was seen to be wrong, or None for none.

        Where the budget ends first, that is the smallest one so far, and not `is_complete`.
        """
        try:
            for suspects in () if self._best else self._suspects():
                if self._confirm(suspects) is not None:
                    break
            # Where nothing was found: all of it, of which it is known that it is wrong.
            nodes = list(computing_nodes(self._program))
            while self._halve(self._best.part.nodes if self._best else nodes):
                pass
            if self._best is None:
                self._compile_part(nodes)
            self.is_complete = True
        except BudgetSpent:
            self._trials.notes.append("the budget was spent before the smallest part was found")
        return self._best

    def try_known(self, faults: Sequence[tuple[str, ...]]) -> PartResult | None:
        """Return the first part, of those known to be wrong, that is so on this program's values.

        A fault names calls, as `tasks.conformance.lookup` does. Parts are small and compiled
        alone, so that this costs little of what the program does; none being wrong proves nothing.
        """
        try:
            for part in known_parts(self._program, faults)[:_MAX_KNOWN]:
                if result := self._compile_part(part):
                    return result
        except BudgetSpent:
            self._trials.notes.append("the budget was spent before what is known was tried")
        return None

    @property
    def others(self) -> list[Node]:
        """Nodes beside the part that was found which are off on the package's own inputs."""
        part = self._best.part.nodes if self._best else ()
        return [node for node in self._other_faults if node not in part]

    def _compile_part(self, nodes: Sequence[Node]) -> PartResult | None:
        """Compile a part alone; keep and return it where it is wrong."""
        if frozenset(nodes) in self._right_parts:
            return None
        part = cut(self._program, self._values, nodes)
        # A part may do nothing but write to what others read.
        result = self._trials.compile_part(part) if part.outputs else None
        if result is None or result.worst is None:
            self._right_parts.add(frozenset(nodes))
            return None
        self._best = result
        return result

    def _suspects(self) -> Iterator[list[Node]]:
        """Give parts that end at the first wrong value, by the compiled program's own values."""
        computing = [n for n in computing_nodes(self._program) if n.users and is_tensor(n)]
        for step, start in _PATTERNS:
            if step > 1 and len(computing) < 2 * step:
                continue
            # The whole program is compiled to return also the values of some nodes.
            all_nodes = computing_nodes(self._program)
            taps = self._limit_taps(computing[start::step])
            result = self._trials.compile_part(cut(self._program, self._values, all_nodes, taps))
            if result.failure:
                continue
            by_name = dict(zip(result.part.outputs, result.judged, strict=True))
            is_wrong = {
                node: by_name[node.name].is_wrong and by_name[node.name].excess >= self._limit
                for node in result.part.nodes if node.name in by_name
            }  # fmt: skip
            if not any(is_wrong.values()):
                which = "all values" if step == 1 else f"every {step}th value"
                self._trials.notes.append(
                    f"with {which} on the way as outputs the fault goes away: "
                    "operators make it together"
                )
                self._min_nodes = 2
                continue
            returned = dict(zip(result.part.outputs, result.outputs, strict=True))
            self._other_faults = find_others(
                self._program, self._values, returned, computing,
                recipe=self._trials.job.recipe, limit=self._limit,
            )  # fmt: skip
            first = [
                node for node in computing
                if is_wrong.get(node)
                and not any(is_wrong.get(source) for source in _nearest_observed(node, is_wrong))
            ]  # fmt: skip
            for node in first[:_MAX_SUSPECTS]:
                yield _nodes_between(node, is_wrong)
            return

    def _limit_taps(self, taps: list[Node]) -> list[Node]:
        chosen, size = [], 0
        for node in taps:
            value = self._values[node.name]
            size += value.numel() * value.element_size()
            if size <= _MAX_TAPPED_BYTES:
                chosen.append(node)
        return chosen

    def _confirm(self, suspects: list[Node]) -> PartResult | None:
        """Return the suspects as a part that is wrong alone, with their neighbours if need be."""
        nodes = suspects
        for reach in (0, *_REACHES):
            wider = _neighbourhood(suspects, reach)
            if reach and len(wider) == len(nodes):
                break
            nodes = wider
            result = self._compile_part(nodes)
            if result is not None:
                return result
        return None

    def _halve(self, part: Sequence[Node]) -> bool:
        """Look for a smaller part of a part that is still wrong; return whether there is one."""
        nodes = list(part)
        half, quarter = (len(nodes) + 1) // 2, max(1, len(nodes) // 4)
        tried: list[list[Node]] = [nodes, []]
        for piece in (nodes[:half], nodes[half:], nodes[quarter:], nodes[:-quarter]):
            if piece not in tried and len(piece) >= self._min_nodes:
                tried.append(piece)
                if self._compile_part(piece) is not None:
                    return True
        return False


def known_parts(program: ExportedProgram, faults: Sequence[tuple[str, ...]]) -> list[list[Node]]:
    """Return the parts of the program that make all calls of a fault, each connected.

    A fault of one call is a part for each node that makes it.
    """
    found = []
    kinds = {node: kind_of(call) for node in computing_nodes(program) if (call := call_of(node))}
    for calls in faults:
        needed = set(map(kind_of, calls))
        making = [node for node, kind in kinds.items() if kind in needed]
        parts = [[node] for node in making] if len(needed) == 1 else _group_connected(making)
        found += [part for part in parts if needed.issubset(kinds[node] for node in part)]
    return found


def _group_connected(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the nodes in groups, of which none uses what another gives; in the graph's order."""
    groups: list[list[Node]] = []
    for node in nodes:
        near = [
            group for group in groups if any(source in group for source in node.all_input_nodes)
        ]
        joined = sorted((other for group in near for other in group), key=nodes.index)
        groups = [group for group in groups if group not in near] + [[*joined, node]]
    return groups


def _nearest_observed(node: Node, observed: Mapping[Node, bool]) -> Iterator[Node]:
    """Give the nearest nodes before `node` whose values were looked at."""
    waiting, visited = list(node.all_input_nodes), {node}
    while waiting:
        source = waiting.pop()
        if source in visited:
            continue
        visited.add(source)
        if source in observed:
            yield source
        else:
            waiting += source.all_input_nodes


def _nodes_between(node: Node, observed: Mapping[Node, bool]) -> list[Node]:
    """Return `node` and what lies between it and the values before it that were looked at."""
    waiting, found = [node], set()
    while waiting:
        source = waiting.pop()
        if (
            source in found
            or source.op != "call_function"
            or (source in observed and source != node)
        ):
            continue
        found.add(source)
        waiting += source.all_input_nodes
    return [source for source in node.graph.nodes if source in found]


def _neighbourhood(nodes: Sequence[Node], reach: int) -> list[Node]:
    """Return the nodes and all that are at most `reach` steps from one of them."""
    found = set(nodes)
    for _ in range(reach):
        near = {other for node in found for other in (*node.all_input_nodes, *node.users)}
        found |= {node for node in near if node.op == "call_function"}
    return [node for node in nodes[0].graph.nodes if node in found]


def find_others(
    program: ExportedProgram,
    values: Mapping[str, Any],
    returned: Mapping[str, torch.Tensor],
    nodes: Sequence[Node],
    *,
    recipe: Recipe,
    limit: float,
) -> list[Node]:
    """Return the nodes that are wrong on the package's own inputs, by an excess of `limit`.

    The one that is furthest off comes first.

    `returned` are the values (by node name, of the nodes' shapes and dtypes) that the package
    returned, `values` those of all other nodes; a node one of whose computed inputs wasn't returned
    is left out.
    """
    package_values = {**values, **returned}
    found: list[tuple[float, Node]] = []
    for node in nodes:
        computed = [i for i in node.all_input_nodes if i.op == "call_function" and is_tensor(i)]
        if node.name not in returned or not all(i.name in returned for i in computed):
            continue
        part = cut(program, package_values, [node])
        if part.outputs != (node.name,) or writes(node):
            continue
        eager, float64 = part.run()
        conditioning = part.conditioning(eager)
        (judged,) = judge(
            "", (returned[node.name],), eager, float64, recipe, conditioning=conditioning
        )
        if judged.is_wrong and judged.excess >= limit:
            found.append((judged.excess, node))
    return [node for _, node in sorted(found, key=lambda one: -one[0])]
