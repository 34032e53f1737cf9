"""What a release would build and why, found out with nothing written anywhere.

The delivery is read, judged and taken through the recipe's passes, in a folder of its own that is
gone afterwards. Store and ledger are only read; MLflow isn't asked at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from handoff.artifacts.digest import Digest
from handoff.artifacts.job import Job
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.releases import Releases
from handoff.infra.commands.registry import releases_of
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.settings import Settings, compiler_name
from handoff.infra.terminal.step_times import StepTimes, read_times, times_folder
from handoff.tasks.compile.caching.package_cache import cache_of
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.compile.messages import FindPackageJob, Reused
from handoff.tasks.compile.toolchain import changes_since
from handoff.tasks.inspect.messages import TraceabilityResult
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.registry.assemble import refuse_unsound
from handoff.tasks.registry.draft import require_free_alias
from handoff.tasks.release.jobs import Jobs
from handoff.tasks.steps import step_of

R = TypeVar("R")


@dataclass(frozen=True)
class Rehearsal:
    """What a release would do: find `version` again, or build `targets`, and `why`.

    `targets` tell for each target what is in the compile cache: the package whole, its code, or
    nothing; `times` hold the seconds that steps took in earlier releases of the model.
    """

    taken: IntakeResult
    judged: TraceabilityResult
    fingerprint: Digest
    version: int | None
    why: str
    targets: dict[str, Reused]
    times: StepTimes


def rehearse(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str, scratch: Path, *, rebuild: bool
) -> Rehearsal:
    """Find out what a release of the `delivery` would do; work in the folder `scratch`.

    Raises what a release would raise up to its first compilation.
    """
    # The cache is the home's, beside the workspace that a release would have.
    cache = cache_of(delivery, settings.home / "builds" / "packages")
    jobs = Jobs(scratch, recipe, rebuild, cache)
    process = StepProcess(
        ProcessPlan(
            "dry-run", ("intake",), recipe.extensions,
            reads=(delivery, cache), writes=(scratch,),
        ),
        scratch / "logs" / "steps.log",
    )  # fmt: skip
    try:
        taken = _step(process, IntakeJob(delivery, jobs.staging))
        judged = _step(process, jobs.traceability())
        refuse_unsound(judged)
        model = taken.contract.model.name
        fingerprint = fingerprint_release(taken.digest, recipe, compiler_name())
        version, why = _reason(settings, taken, recipe, fingerprint, alias)
        times = read_times(times_folder(settings), model)
        targets: dict[str, Reused] = {}
        if version is None or rebuild:
            optimized = _step(process, jobs.optimize())
            for target in recipe.resolved_targets():
                job = FindPackageJob(jobs.compile(optimized, target))
                found = _step(process, job, f"look for {target.slug}")
                targets[target.slug] = found.reused
        if version is not None and rebuild:
            version, why = None, f"--rebuild asks for it, though version {version} is made of this"
        return Rehearsal(taken, judged, fingerprint, version, why, targets, times)
    finally:
        process.close()


def _step(process: StepProcess, job: Job[R], told: str = "") -> R:
    from handoff.flows.progress import announced

    with announced(told or step_of(job).name) as announcement:
        done = process.submit(job).result()
        announcement.seconds = done.seconds
    return done.result


def _reason(
    settings: Settings, taken: IntakeResult, recipe: Recipe, fingerprint: Digest, alias: str
) -> tuple[int | None, str]:
    """Return the version that would be found again, or None and why one would be built."""
    releases, model = releases_of(settings), taken.contract.model.name
    known = model in releases.models()
    head = releases.require_head(model).entry if known else None
    require_free_alias(head, alias)
    if head is None:
        return None, f"nothing was released as {model} before"
    same = _made_from(releases, head, fingerprint)
    if same is not None and releases.is_whole(model, same.pointer):
        return same.version, f"version {same.version} was made of the same"
    if same is not None:
        return None, f"files of version {same.version}, made of the same, are lost from the store"
    if not head.kept:
        return None, "every version before was retired"
    newest = releases.find(model, None)
    changed = ", ".join(
        changes_since(releases.read(model, newest).manifest, taken.digest, recipe, compiler_name())
    )
    return None, f"other than version {newest.version}: {changed}"


def _made_from(releases: Releases, head: LedgerEntry, fingerprint: Digest) -> LedgerEntry | None:
    """Return the newest release that was made from the same.

    It goes by the ledger itself: `Releases.made_from` needs copies that a release publishes first.
    """
    made = (
        entry
        for entry in releases.backwards(head.model)
        if entry.action == "release" and entry.fingerprint == fingerprint
    )
    return next((entry for entry in made if entry.version in head.kept), None)
