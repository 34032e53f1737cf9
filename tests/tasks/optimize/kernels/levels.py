"""The levels that a function of our own is compiled for, each once for all its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags
from handoff.tasks.optimize.kernels import compiler_options
from tests.tasks.compile.torch_compilation import compile_as_torch_does

# With bfloat16's products, with AVX-512 alone, and with half as wide vectors.
LEVELS: tuple[Isa, ...] = ("avx512-bf16", "avx512", "avx2")


def compile_for_level(
    isa: Isa, module: nn.Module, inputs: tuple[object, ...], dynamic_shapes: Any, folder: Path
) -> Path:
    """Return the package of a module for a level; skip the test where the machine hasn't it."""
    target = CpuTarget(isa)
    if not target.cpu_flags <= host_cpu_flags():
        pytest.skip(f"this machine has no {isa}")
    with torch.no_grad():
        program = torch.export.export(
            module.eval(),
            inputs,
            dynamic_shapes=dynamic_shapes,
        )
    return compile_as_torch_does(program, folder / isa, compiler_options(program), target=target)
