"""A program as it was before a pass: to compare with, and to go back to."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

import torch.fx
from torch.export import ExportedProgram

Program = TypeVar("Program", torch.fx.GraphModule, ExportedProgram)


def snapshot(program: Program) -> Program:
    """Return a copy of the program that shares its tensors: passes replace them, by their rules.

    One that writes to them is noticed by `tasks.passes.base.held_tensors`.
    """
    return cast(Program, _copy(program))


def _copy(program: torch.fx.GraphModule | ExportedProgram) -> object:
    graph = copy.deepcopy(program.graph)
    if isinstance(program, torch.fx.GraphModule):
        module = torch.fx.GraphModule(program, graph, program.__class__.__name__)
        return module.train(program.training)
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )
