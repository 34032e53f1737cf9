"""What the passes are asked to make of a delivery, and what they did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import Job
from handoff.artifacts.release.evidence import FoldedGraphs, PassEffect


@dataclass(frozen=True)
class OptimizeJob(Job["OptimizeResult"]):
    """Run the recipe's passes on the delivery in `staging`; write the programs into `folder`."""

    staging: Path
    folder: Path
    recipe: Recipe


@dataclass(frozen=True)
class OptimizeResult:
    """The exported program to compile, and what each pass did.

    `reference` is the program that the numbers are compared with when the recipe changes them on
    purpose; None means the delivered module itself. `outputs` are the specs that capture found, and
    `computed_dimensions` the ranges of output sizes that are computed from the inputs'. `graphs`
    are the delivered graph and the program's, folded to be drawn. `calls` are the program's
    operators, each with the dtypes of its tensors. `rounds` says that a pass that rounds changed
    it.
    """

    program: Path
    reference: Path | None
    outputs: tuple[TensorSpec, ...]
    computed_dimensions: dict[str, Dimension]
    effects: tuple[PassEffect, ...]
    graphs: FoldedGraphs | None = None
    calls: tuple[str, ...] = ()
    rounds: bool = False
