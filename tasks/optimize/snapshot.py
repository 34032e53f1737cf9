"""A program as it was before a pass: to compare with, and to go back to."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

import torch.fx
from torch.export import ExportedProgram

Program = TypeVar("Program", torch.fx.GraphModule, ExportedProgram)


def snapshot(program: Program) -> Program:
    """Return a copy of the program that shares its tensors: passes replace them, by their rules.

    One that writes to them is noticed by `tasks.optimize.passes.base.held_tensors`.
    """
    return cast(Program, _copy(program))


def _copy(program: torch.fx.GraphModule | ExportedProgram) -> object:
    graph = _copy_graph(program.graph)
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


def _copy_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy whose nodes have the same names, which an exported program's signature holds.

    Copying gives a name such as `input`, which Python knows already, a number.
    """
    copied = copy.deepcopy(graph)
    for old, new in zip(graph.nodes, copied.nodes, strict=True):
        if new.name != old.name:
            new.name = old.name
    return copied
