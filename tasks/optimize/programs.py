"""Exported programs as files, with the operators registered that they may call."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

import handoff.tasks.optimize.kernels  # noqa: F401 - it registers the operators that our passes put in


def save_program(program: ExportedProgram, path: Path) -> Path:
    """Write `program` to `path`, and return that."""
    torch.export.save(program, path)
    return path


def load_program(path: Path) -> ExportedProgram:
    """Return the program that `save_program` wrote. Ours alone: reading one may run its code."""
    return torch.export.load(path)
