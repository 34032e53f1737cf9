"""Packages as torch compiles them on its own: nothing of ours but what makes it quick."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

from handoff.artifacts.recipe.target import CpuTarget, native_cpu_target
from handoff.tasks.compile.caching.compiled_interface import link_interface_object
from handoff.tasks.compile.caching.shared_tools import use_headers_from
from handoff.tasks.compile.machine.host import SHIPPED_OPTIONS, has_march_option
from handoff.tasks.compile.machine.vector_isa import restrict_vector_isa
from tests.shared_tools import shared_compiler


def compile_as_torch_does(
    program: ExportedProgram,
    folder: Path,
    options: dict[str, object] | None = None,
    *,
    target: CpuTarget | None = None,
) -> Path:
    """Write `model.pt2` of `program` to the folder, which may not be there yet, and return it.

    For this machine where no target is given. With the options of a release, since precompiled
    headers go by them.
    """
    target, shared = target or native_cpu_target(), shared_compiler()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {**SHIPPED_OPTIONS, **(options or {})}
    if has_march_option():
        chosen["cpp.march"] = target.march
    with (
        torch.no_grad(),
        link_interface_object(),
        use_headers_from(shared),
        restrict_vector_isa(target, shared),
    ):
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs=chosen
        )
    return Path(path)
