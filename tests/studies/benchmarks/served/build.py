"""Build what Handoff registers for a model: deliver, then the release's own steps up to the race.

python -m tests.studies.benchmarks.served.build resnet18 FOLDER --recipes float32

The steps run in the release's own processes, with a recipe of those beside this file: taken in,
optimized, each variant compiled and compared with the reference over the plan. What doesn't bear on
speed is left out: the probe, signing and the registry. FOLDER/releases has a release's folder for
each variant that is accepted: its package, and a manifest by which the loader opens and checks it.
FOLDER/variants.json says what came out, and FOLDER/others has what competitors are served from.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.recipe.target import (
    CpuTarget,
    Target,
    host_cpu_flags,
    native_cpu_target,
    require_target,
)
from handoff.artifacts.release.evidence import Candidate
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.flows.target.variants import PLAIN, milder_than
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.registry.assemble import signature_of
from handoff.tasks.registry.target_record import require_effect, require_new
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import ReferenceResult
from tests.studies.benchmarks.failures import NotMadeError
from tests.studies.benchmarks.served.competitors import RIVALS
from tests.studies.benchmarks.served.conditions import commit_of_the_clone
from tests.studies.benchmarks.served.racer import CALIBRATING, hold_threads, write_file
from tests.studies.corpus.models import MODELS, CorpusModel

_RECIPES = Path(__file__).parent / "recipes"
PRECISIONS = tuple(sorted(folder.name for folder in _RECIPES.iterdir()))
VARIANTS_FILE = "variants.json"
_LIMIT_S = 1200.0
# Batches that a metric is computed of, and more where these hold fewer rows than an interval needs.
_BATCHES, _ROWS = 8, 64


def recipe_of(model: str, precision: str) -> Recipe:
    """Return a model's own recipe, or else what all are released by."""
    own = _RECIPES / precision / f"{model}.toml"
    return read_recipe(own if own.exists() else _RECIPES / precision / "default.toml")


# From the fastest on, for what computes in lower precision.
_LEVELS = {
    "float32": (),
    "bfloat16": ("cpu-amx", "cpu-avx512-bf16"),
    "int8": ("cpu-amx", "cpu-avx512-vnni", "cpu-avx2-vnni"),
}


def target_of(precision: str) -> CpuTarget:
    """Return the level that this processor has for a precision; raise `ValueError` for none."""
    for slug in _LEVELS[precision]:
        target = require_target(slug)
        if isinstance(target, CpuTarget) and target.cpu_flags <= host_cpu_flags():
            return target
    return native_cpu_target()


def brought_along(model: CorpusModel, precision: str) -> dict[str, Any]:
    """Return what a delivery for int8 brings beside the example: batches, samples, a metric."""
    if precision != "int8":
        return {}
    count = CALIBRATING + max(_BATCHES, -(-_ROWS // model.batch))
    batches = [kwargs or args for args, kwargs in model.others(count)]
    evaluation = [(one, None) for one in batches[CALIBRATING:]]
    return {"calibration": batches[:CALIBRATING], "evaluation": evaluation, "metric": "cosine"}


def main() -> None:
    """Deliver the model, and build its variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--competitors", default=",".join(RIVALS["float32"]))
    args = parser.parse_args()
    hold_threads()
    (model,) = [model for model in MODELS if model.name == args.name]
    delivery: Path = args.folder / "delivery"
    if not delivery.exists():
        model.deliver(*model.make(), delivery, **brought_along(model, args.recipes))
    recipe, target = recipe_of(model.name, args.recipes), target_of(args.recipes)
    workspace, releases = args.folder / "workspace", args.folder / "releases"
    for folder in (workspace, releases):
        # What a build has left that didn't come to its end.
        shutil.rmtree(folder, ignore_errors=True)
    with Processes(workspace, recipe, delivery=delivery) as processes:
        variants = _build(processes, target, releases, delivery)
    document = json.dumps({"commit": commit_of_the_clone(), "variants": variants}, indent=1)
    (args.folder / VARIANTS_FILE).write_text(document, encoding="utf-8")
    for variant in variants:
        accepted = "accepted" if variant["accepted"] else variant["reasons"]
        print(model.name, variant["name"], accepted)
    for competitor in filter(None, args.competitors.split(",")):
        try:
            write_file(model.name, competitor, args.folder / "others")
        except NotMadeError as error:
            print(model.name, competitor, error)


def _build(
    processes: Processes, target: Target, releases: Path, delivery: Path
) -> list[dict[str, Any]]:
    intake = IntakeJob(delivery, processes.jobs.staging)
    taken = processes.graph.run(intake, limit_s=_LIMIT_S)
    optimized = processes.graph.run(processes.jobs.optimize(), limit_s=_LIMIT_S)
    referring = processes.jobs.reference(optimized)
    reference = processes.runner().run(referring, limit_s=_LIMIT_S)
    signature = signature_of(taken.contract, optimized)
    work = _Work(processes, target, optimized, reference, signature, releases)
    attempts = []
    waiting = [PLAIN, *processes.jobs.recipe.search.candidates]
    while waiting:
        attempts.append(_attempt(work, waiting.pop(0)))
        # As a release's search does it.
        milder = attempts[-1].pop("milder", "")
        if milder and milder not in waiting:
            waiting.insert(0, milder)
    return attempts


@dataclass(frozen=True)
class _Work:
    """What the variants share."""

    processes: Processes
    target: Target
    optimized: OptimizeResult
    reference: ReferenceResult
    signature: ModelSignature
    releases: Path
    made: dict[Digest, str] = field(default_factory=dict)


def _attempt(work: _Work, name: str) -> dict[str, Any]:
    """Compile and verify one variant; return what came of it."""
    processes, target, optimized, reference = (
        work.processes,
        work.target,
        work.optimized,
        work.reference,
    )
    began = time.monotonic()
    refusal: dict[str, Any] = {"name": name, "verified": False, "accepted": False, "reasons": []}
    try:
        job = processes.jobs.compile(optimized, target)
        if name != PLAIN:
            variation = Search.variation(name)
            if variation.passes:
                found = processes.optimizer().run(
                    processes.jobs.variant(name, variation.passes), limit_s=_LIMIT_S
                )
                plain, optimized = optimized, found
                require_effect(optimized, plain)
            job = processes.jobs.candidate(optimized, target, name, variation.options)
        compiled = processes.compiler(target).run(job, limit_s=_LIMIT_S)
        require_new(compiled, work.made)
        work.made[compiled.library.digest] = name
        verifying = replace(
            processes.jobs.verify(
                target.slug, job.folder, compiled.library.digest, optimized, reference
            ),
            assumed=compiled.assumed, atomic_sums=compiled.atomic_sums,
        )  # fmt: skip
        verified = processes.runner(target).run(verifying, limit_s=_LIMIT_S)
    except HandoffError as error:
        return refusal | {"reasons": [str(error)]}
    release = work.releases / name
    milder = ""
    if verified.accepted:
        _write_release(work, compiled, job.folder, release)
    elif name != PLAIN:
        milder = milder_than(Candidate(name, accepted=False, metric=verified.metric))
    return {
        "name": name, "verified": True, "accepted": verified.accepted,
        "reasons": list(verified.reasons),
        "release": str(release), "packages": str(job.folder), "reference": str(reference.file),
        "compile_s": compiled.compile_s, "seconds": time.monotonic() - began, "milder": milder,
    }  # fmt: skip


def _write_release(work: _Work, compiled: CompileResult, packages: Path, release: Path) -> None:
    """Write what a pulled release's folder holds, but for the evidence and the signature."""
    slug = work.target.slug
    (release / slug).mkdir(parents=True)
    for file in compiled.files:
        os.link(packages / Path(file.path).name, release / file.path)
    record = TargetRecord(slug, accepted=True, reasons=(), files=compiled.files, fit=compiled.fit)
    nothing = digest_bytes(b"")
    manifest = Manifest(
        model="raced", delivery=nothing, fingerprint=nothing, verdict="sound",
        signature=work.signature, recipe=work.processes.jobs.recipe, lineage=Lineage(),
        targets=(record,),
    )  # fmt: skip
    (release / MANIFEST_FILE).write_bytes(manifest.to_bytes())


if __name__ == "__main__":
    main()
