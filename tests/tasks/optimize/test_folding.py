"""Graphs are folded to modules: every operator in one box, and what a pass changed beside it."""

from __future__ import annotations

import torch
import torch.fx
from torch import nn

from handoff.artifacts.release.evidence import INPUTS, OUTPUTS
from handoff.tasks.optimize.check import snapshot
from handoff.tasks.optimize.folding import (
    BOXES_AT_MOST,
    ModuleMemory,
    changes_between,
    fold_evidence,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x))) + x


def blocks(count: int) -> torch.fx.GraphModule:
    """Return a graph as a delivery is read: without the tracer's notes on its modules."""
    traced = torch.fx.symbolic_trace(nn.Sequential(*(Block() for _ in range(count))))
    for node in traced.graph.nodes:
        node.meta.clear()
    return traced


def test_every_operator_lies_in_one_box_and_boxes_lead_to_one_another() -> None:
    module = blocks(2)
    program = torch.export.export(module, (torch.randn(3, 4),))
    _, graphs = fold_evidence((), module, program, ModuleMemory())
    paths = [one.path for one in graphs.delivered.modules]
    assert paths == [INPUTS, "0.linear", "0.norm", "1.linear", "1.norm", OUTPUTS]
    boxes = {one.path: one for one in graphs.delivered.modules}
    assert boxes["0.linear"].operators == {"Linear": 1}
    assert boxes["1.norm"].operators == {"LayerNorm": 1, "relu": 1, "add": 1}
    assert [paths[place] for place in boxes["0.linear"].feeds] == ["0.norm"]
    assert graphs.delivered.nodes == len(module.graph.nodes)
    compiled = {one.path: one.operators for one in graphs.compiled.modules}
    assert compiled["0.linear"] == {"linear": 1}
    counted = sum(sum(one.operators.values()) for one in graphs.compiled.modules[1:-1])
    assert counted == len([n for n in program.graph.nodes if n.op.startswith("call_")])


def test_a_node_that_export_made_by_itself_belongs_where_its_weights_do() -> None:
    module = blocks(1)
    program = torch.export.export(module, (torch.randn(3, 4),))
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = "_empty_nn_module_stack_from_metadata_hook"
            node.meta["nn_module_stack"] = {name: (name, name)}
    _, graphs = fold_evidence((), module, program, ModuleMemory())
    paths = [one.path for one in graphs.compiled.modules]
    assert paths == [INPUTS, "0.linear", "0.norm", OUTPUTS]


def test_a_large_graph_is_folded_to_few_boxes() -> None:
    deep = blocks(15)
    wide = torch.fx.symbolic_trace(nn.Sequential(*(nn.Linear(4, 4) for _ in range(90))))
    for module in (deep, wide):
        program = torch.export.export(module, (torch.randn(3, 4),))
        _, graphs = fold_evidence((), module, program, ModuleMemory())
        for graph in (graphs.delivered, graphs.compiled):
            assert 5 < len(graph.modules) <= BOXES_AT_MOST + 2
    held = sum(sum(one.operators.values()) for one in graphs.delivered.modules[1:-1])
    assert held == 90


def test_what_a_pass_changed_is_reported_by_module_and_what_it_left_is_not() -> None:
    module = blocks(2)
    before = snapshot(module)
    (node,) = [n for n in module.graph.nodes if n.target == "1.norm"]
    node.replace_all_uses_with(node.args[0])
    module.graph.erase_node(node)
    memory = ModuleMemory()
    (change,) = changes_between(before, module, memory)
    assert (change.path, change.removed, change.added) == ("1.norm", {"LayerNorm": 1}, {})
    assert changes_between(module, module, memory) == ()
    # Its neighbours stay where they were, though what they were read off is gone.
    assert memory.scopes_of(module)["relu_1"] == "1.norm"


def test_a_residual_connection_adds_in_the_block_that_it_ends_in() -> None:
    module = blocks(2)
    scopes = ModuleMemory().scopes_of(module)
    assert (scopes["add"], scopes["add_1"]) == ("0.norm", "1.norm")
