"""NVIDIA's `fatbinary`, which puts a kernel's machine code and PTX into one file: where it is.

torch's own wheels don't bring it. Nothing here imports torch.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.recipe.gpu_generations import FIRST_SPECIFIC
from handoff.artifacts.recipe.target import CudaTarget

REMEDY = (
    "Install it: 'pip install nvidia-cuda-nvcc', of the CUDA that torch was built with, or a CUDA "
    "toolkit with its bin folder on the PATH"
)


def needs_fatbinary(target: CudaTarget) -> bool:
    """Return whether packages for the target hold more of a kernel than one GPU's machine code."""
    return bool(target.further) or target.sm < FIRST_SPECIFIC


def find_fatbinary() -> Path | None:
    """Return NVIDIA's `fatbinary`, from the wheels beside torch or the PATH, or None."""
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    wheels = [path for folder in folders for path in folder.glob("cu*/bin/fatbinary")]
    on_path = shutil.which("fatbinary")
    return next(iter(wheels), Path(on_path) if on_path else None)


def require_fatbinary() -> Path:
    """Return where it is; raise `EnvironmentLacking` where it isn't."""
    found = find_fatbinary()
    if found is None:
        raise EnvironmentLacking(
            "no fat binaries can be made of the kernels, as packages for GPUs before "
            f"sm_{FIRST_SPECIFIC} and for several GPUs hold",
            expected="NVIDIA's fatbinary", got="none", remedy=REMEDY,
        )  # fmt: skip
    return found
