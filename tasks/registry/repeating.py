"""Repeats the comparison that a release rests on, with the delivery that it was made from."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.errors import BlessingRefused, UsageProblem
from handoff.artifacts.recipe.recipe import KNOBS, PassChoice, Search
from handoff.artifacts.recipe.target import installed_torch, parse_target
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.package import check_release
from handoff.artifacts.release.signing import read_trust
from handoff.artifacts.site import Stores
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.registry.messages import PullJob, RestoreJob
from handoff.tasks.registry.pull import run as pull
from handoff.tasks.registry.restore import run as restore
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import ReferenceResult, VerifyJob, VerifyResult


def repeat_comparison(folder: Path, manifest: Manifest, slug: str, delivery: Path) -> str:
    """Compare the package of one target in `folder` with `delivery` again; return what came out.

    The input plan is made anew and is the recorded one where its digest is. Raises `UsageProblem`
    for another delivery than the release was made from, and `BlessingRefused` where the package is
    not accepted here.
    """
    (record,) = [target for target in manifest.targets if target.slug == slug]
    (library,) = [file for file in record.files if file.path.endswith(".so")]
    recipe = replace(manifest.recipe, targets=(slug,))
    target = parse_target(slug)
    with (
        tempfile.TemporaryDirectory(prefix="handoff-") as scratch,
        Processes(
            Path(scratch) / "repeat", recipe, reads=(delivery.absolute(), folder.absolute())
        ) as processes,
    ):
        jobs = processes.jobs
        intake = IntakeJob(delivery.absolute(), jobs.staging)
        taken = processes.graph.run(intake)
        _require_the_same(manifest, taken, delivery)
        optimized = processes.graph.run(jobs.optimize())
        reference = processes.runner().run(jobs.reference(optimized))
        if passes := _passes_of_variant(record):
            # The package was compiled from what these made of the program.
            optimized = processes.graph.run(jobs.variant(record.chosen, passes))
        names = tuple(spec.name for spec in manifest.signature.outputs)
        job = VerifyJob(
            folder.absolute() / slug, reference.file, recipe, library.digest, outputs=names,
            target=slug, staging=jobs.staging, program=optimized.reference,
            atomic_sums=record.atomic_sums, evaluation=reference.evaluation,
            rounded=jobs.rounded(optimized),
        )  # fmt: skip
        verified = processes.runner(target).run(job)
    return _tell(manifest, record, reference, verified)


def _passes_of_variant(record: TargetRecord) -> tuple[PassChoice, ...]:
    """Return the passes of the variant that was chosen; none of the plain package."""
    words = record.chosen.split("+")
    return Search.variation(record.chosen).passes if all(word in KNOBS for word in words) else ()


def verify_released(
    stores: Stores, model: str, reference: str | int, target: str, scratch: Path
) -> str:
    """Pull a version and the delivery that was kept with it, and compare them again here.

    `target` is a slug, or `auto` for the best one that fits. Raises `PackageRefused` for one that
    isn't what was signed or doesn't fit, and `BlessingRefused` as `repeat_comparison` does.
    """
    folder = scratch / "version"
    pulled = pull(PullJob(model, reference, folder, target, stores, installed_torch()))
    trust = read_trust(stores.trusted)
    manifest = check_release(folder, installed_torch(), trust, unverified=True).manifest
    restored = restore(RestoreJob(stores, model, pulled.version, scratch / "delivery"))
    told = repeat_comparison(folder, manifest, pulled.target, restored.folder)
    return f"{model} version {pulled.version}: {told}"


def _require_the_same(manifest: Manifest, taken: IntakeResult, delivery: Path) -> None:
    if taken.digest != manifest.delivery:
        raise UsageProblem(
            f"{delivery} is not the delivery that {manifest.model} was released from",
            expected=manifest.delivery.short,
            got=taken.digest.short,
            remedy="Name the folder that was released",
        )


def _tell(
    manifest: Manifest, record: TargetRecord, reference: ReferenceResult, verified: VerifyResult
) -> str:
    slug = record.slug
    if not verified.accepted:
        raise BlessingRefused(
            f"{manifest.model}'s package for {slug} is not what was released, or not on this "
            "machine",
            expected="every output within the agreed tolerance",
            got="; ".join(verified.reasons[:5]),
            remedy="Compare the toolchains, and release it again",
        )
    if record.unverified:
        return (
            f"{slug}: right here in {len(verified.deviations)} comparisons "
            f"({reference.plan.short}); it stays 'built, not yet verified' until it is released "
            "where its hardware is"
        )
    same = "the recorded plan" if str(reference.plan) == manifest.plan else "another plan"
    return (
        f"{slug}: accepted again, {len(verified.deviations)} comparisons on {same} "
        f"({reference.plan.short})"
    )
