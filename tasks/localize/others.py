"""Finds further nodes that are off, by the values that the package itself had computed.

After the first wrong node nothing that is compared with float64 from the start says much. What a
node gives can be compared with what eager and float64 make of the very inputs that the package had
for it, though, as far as those were returned. That costs no compile, and proves less: the values
are those of a package that was compiled to return them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.localize.measure import judge
from handoff.tasks.localize.subgraph import cut, is_tensor, writes


def find_others(
    program: ExportedProgram,
    values: Mapping[str, Any],
    given: Mapping[str, torch.Tensor],
    nodes: Sequence[Node],
    *,
    recipe: Recipe,
    limit: float,
) -> list[Node]:
    """Return the nodes that are wrong on the package's own inputs, by an excess of `limit`.

    The one that is furthest off comes first.

    `given` are the values that the package returned, `values` those of all other nodes; a node one
    of whose computed inputs wasn't returned is left out.
    """
    own = {**values, **given}
    found: list[tuple[float, Node]] = []
    for node in nodes:
        computed = [i for i in node.all_input_nodes if i.op == "call_function" and is_tensor(i)]
        if node.name not in given or not all(i.name in given for i in computed):
            continue
        part = cut(program, own, [node])
        if part.outputs != (node.name,) or writes(node):
            continue
        eager, float64 = part.run()
        conditioning = part.conditioning(eager)
        (judged,) = judge(
            "", (given[node.name],), eager, float64, recipe, conditioning=conditioning
        )
        if judged.is_wrong and judged.excess >= limit:
            found.append((judged.excess, node))
    return [node for _, node in sorted(found, key=lambda one: -one[0])]
