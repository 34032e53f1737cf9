"""The source code that Inductor writes of a program, for tests that read it and compile none."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.compile_fx
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram

from handoff.artifacts.recipe.target import CpuTarget, native_cpu_target
from handoff.tasks.compile.input_checks import enable_input_checks
from handoff.tasks.compile.machine.host import SHIPPED_OPTIONS
from handoff.tasks.compile.packing import leave_linears_to_mkl, pack_convolutions
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.compile.reading.source_words import prefix_weight_names
from handoff.tasks.compile.weights import KEEPING_OPTIONS, disable_weight_folding
from handoff.tasks.optimize.kernels import compiler_options


class _Written(Exception):
    """What was wanted has been written; nothing needs to be compiled."""


def generate(
    program: ExportedProgram,
    options: dict[str, object] | None = None,
    *,
    target: CpuTarget | None = None,
) -> tuple[str, str]:
    """Return the wrapper and the kernels that are written of `program`, for this CPU or another."""
    target = target or native_cpu_target()
    found: list[tuple[str, str]] = []

    def keep(_graph: object, wrapper: str, kernels: str, *_args: Any, **_kwargs: Any) -> None:
        found.append((wrapper, kernels))
        raise _Written

    chosen = {
        **KEEPING_OPTIONS, **SHIPPED_OPTIONS, **(options or {}), **compiler_options(program)
    }  # fmt: skip
    with (
        torch.no_grad(), enable_input_checks(program), disable_weight_folding(),
        prefix_weight_names(), pack_convolutions(), leave_linears_to_mkl(target),
        patch_attribute(AotCodeCompiler, "compile", staticmethod(keep)),
    ):  # fmt: skip
        try:
            torch._inductor.aoti_compile_and_package(program, inductor_configs=chosen)
        except Exception:
            if not found:
                raise
    return found[0]
