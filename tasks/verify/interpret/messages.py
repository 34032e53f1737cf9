"""The job of running a GPU's kernels without the GPU, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CudaTarget
from handoff.artifacts.record import Job
from handoff.artifacts.release.evidence import SourceCheck
from handoff.tasks.compile.messages import KernelSource


@dataclass(frozen=True)
class InterpretJob(Job["InterpretResult"]):
    """Run the kernels of the package that was compiled of `program` for a GPU that isn't here.

    `sources` are what its kernels were compiled from, `reference` the file of eager's outputs on
    the plan's inputs, and `outputs` the outputs' names. How well conditioned they are is measured
    with the delivery in `staging`, or with the program in the file `model` where the reference is
    that program's. Cases are taken, small ones first, until `seconds` are over. Kernels' sources
    are written to `folder`.
    """

    program: Path
    target: CudaTarget
    reference: Path
    recipe: Recipe
    sources: tuple[KernelSource, ...]
    folder: Path
    staging: Path | None = None
    model: Path | None = None
    outputs: tuple[str, ...] = ()
    seconds: float = 180.0


@dataclass(frozen=True)
class InterpretResult:
    """What was shown; None where it couldn't be, which `unchecked` says why.

    `reasons` say what is wrong, and which kernel, by its lines; `notes` what was seen and is none.
    """

    checked: SourceCheck | None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unchecked: str = ""
