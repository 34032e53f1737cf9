"""Build what Handoff registers for a model: deliver, then the release's own steps up to the race.

python -m tests.benchmarks.served.build resnet18 FOLDER --recipes float32

The steps run in the release's own processes, with a recipe of those beside this file: taken in,
optimized, each variant compiled and compared with the reference over the plan. What doesn't bear on
speed is left out: the probe, signing and the registry. FOLDER/variants.json says what came out.
What competitors are served from is written to FOLDER/others.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from artifacts.digest import Digest
from artifacts.errors import HandoffError
from artifacts.recipe import Recipe, Search, read_recipe
from artifacts.steps import (
    CompileResult,
    IntakeJob,
    OptimizeResult,
    ReferenceResult,
    VerifyJob,
    VerifyResult,
)
from artifacts.target import Target, native_cpu_target
from tasks.lanes import Lanes
from tasks.target_record import require_effect, require_new
from tests.benchmarks.served.competitors import COMPETITORS
from tests.benchmarks.served.racer import NotMadeError, write_file
from tests.corpus.models import MODELS

_RECIPES = Path(__file__).parent / "recipes"
PRECISIONS = tuple(sorted(folder.name for folder in _RECIPES.iterdir()))
_LIMIT_S = 1200.0


def recipe_of(model: str, precision: str) -> Recipe:
    """Return a model's own recipe, or else what all are released by."""
    own = _RECIPES / precision / f"{model}.toml"
    return read_recipe(own if own.exists() else _RECIPES / precision / "default.toml")


def main() -> None:
    """Deliver the model, and build its variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--competitors", default=",".join(COMPETITORS))
    given = parser.parse_args()
    (model,) = [model for model in MODELS if model.name == given.name]
    delivery: Path = given.folder / "delivery"
    if not delivery.exists():
        model.deliver(*model.make(), delivery)
    recipe, target = recipe_of(model.name, given.recipes), native_cpu_target()
    with Lanes(given.folder / "workspace", recipe) as lanes:
        variants = _build(lanes, target, recipe, delivery)
    told = json.dumps(variants, indent=1)
    (given.folder / "variants.json").write_text(told, encoding="utf-8")
    for variant in variants:
        accepted = "accepted" if variant["accepted"] else variant["reasons"]
        print(model.name, variant["name"], accepted)
    for competitor in filter(None, given.competitors.split(",")):
        try:
            write_file(model.name, competitor, given.folder / "others")
        except NotMadeError as error:
            print(model.name, competitor, error)


def _build(lanes: Lanes, target: Target, recipe: Recipe, delivery: Path) -> list[dict[str, Any]]:
    lanes.graph.run(IntakeJob(delivery, lanes.jobs.staging), limit_s=_LIMIT_S)
    optimized = cast(OptimizeResult, lanes.graph.run(lanes.jobs.optimize(), limit_s=_LIMIT_S))
    referring = lanes.jobs.reference(optimized)
    reference = cast(ReferenceResult, lanes.runner().run(referring, limit_s=_LIMIT_S))
    work = _Work(lanes, target, optimized, reference)
    return [_attempt(work, name) for name in ("plain", *recipe.search.candidates)]


@dataclass(frozen=True)
class _Work:
    """What the variants share."""

    lanes: Lanes
    target: Target
    optimized: OptimizeResult
    reference: ReferenceResult
    made: dict[Digest, str] = field(default_factory=dict)


def _attempt(work: _Work, name: str) -> dict[str, Any]:
    """Compile and verify one variant; return what came of it."""
    lanes, target, optimized, reference = work.lanes, work.target, work.optimized, work.reference
    began = time.monotonic()
    told: dict[str, Any] = {"name": name, "accepted": False, "reasons": []}
    try:
        job = lanes.jobs.compile(optimized, target)
        if name != "plain":
            variation = Search.variation(name)
            if variation.passes:
                found = lanes.optimizer().run(
                    lanes.jobs.variant(variation.passes), limit_s=_LIMIT_S
                )
                plain, optimized = optimized, cast(OptimizeResult, found)
                require_effect(optimized, plain)
            job = lanes.jobs.candidate(optimized, target, name, variation.options)
        compiled = cast(CompileResult, lanes.compiler(target).run(job, limit_s=_LIMIT_S))
        require_new(compiled, work.made)
        work.made[compiled.library.digest] = name
        outputs = tuple(spec.name for spec in optimized.outputs)
        verifying = VerifyJob(
            job.folder, reference.file, lanes.jobs.recipe, compiled.library.digest,
            compiled.assumed, outputs, target.slug,
        )  # fmt: skip
        verified = cast(VerifyResult, lanes.runner(target).run(verifying, limit_s=_LIMIT_S))
    except HandoffError as error:
        return told | {"reasons": [str(error)]}
    return {
        "name": name, "accepted": verified.accepted, "reasons": list(verified.reasons),
        "folder": str(job.folder), "reference": str(reference.file),
        "compile_s": compiled.compile_s, "seconds": time.monotonic() - began,
    }  # fmt: skip


if __name__ == "__main__":
    main()
