"""Exported programs as files, and whether a program can be one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.export import ExportedProgram

import handoff.tasks.optimize.kernels  # noqa: F401 - it registers the operators that our passes put in
from handoff.artifacts.errors import first_line
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.optimize.capture import capture
from handoff.tasks.optimize.passes.purity import unbacked_symbols


def save_program(program: ExportedProgram, path: Path) -> Path:
    """Write `program` to `path`, and return that."""
    torch.export.save(program, path)
    return path


def load_program(path: Path) -> ExportedProgram:
    """Return the program that `save_program` wrote. Ours alone: reading one may run its code."""
    return torch.export.load(path)


class ExportBroken(Exception):
    """After a pass, torch can't export the program, or can't write and read it; it says why."""


def is_data_dependent(program: ExportedProgram) -> bool:
    """Return whether a size or a number in the graph is known only when it is computed."""
    return any(unbacked_symbols(node) for node in program.graph.nodes)


def require_exportable(
    program: torch.fx.GraphModule | ExportedProgram, delivery: LoadedDelivery
) -> None:
    """Raise `ExportBroken` where torch can't export a graph module, or read a program back.

    An exported program is written without its weights' values, which takes about 2 ms a node.
    """
    try:
        if isinstance(program, ExportedProgram):
            _write_and_read(program)
        else:
            capture(program, delivery.contract.signature, rows=delivery.rows)
    except Exception as error:
        raise ExportBroken(f"{type(error).__name__}: {first_line(error)}") from error


def _write_and_read(program: ExportedProgram) -> None:
    without_values = ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict=_without_values(program.state_dict),
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=_without_values(program.constants),
        verifiers=program.verifiers,
    )
    buffer = io.BytesIO()
    torch.export.save(without_values, buffer)
    buffer.seek(0)
    torch.export.load(buffer)


def _without_values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    empty = torch.empty(0)
    return {
        name: nn.Parameter(empty, requires_grad=False) if isinstance(value, nn.Parameter)
        else empty if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }  # fmt: skip
