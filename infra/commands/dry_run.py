"""What a release would do, found out with nothing written anywhere, for a person or as JSON.

That a release would change nothing is found out without its flow, whose server and step processes
take some ten seconds to find the same.

The delivery is read, judged and taken through the recipe's passes, in a folder of its own that is
gone afterwards. Store and ledger are only read; MLflow isn't asked at all.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from handoff.artifacts.delivery.contract import IGNORED_FOLDER, read_contract
from handoff.artifacts.delivery.uri import redact_uri
from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import ArmTarget, CudaTarget, parse_target
from handoff.artifacts.record import Job, to_plain
from handoff.artifacts.release.evidence import Finding
from handoff.artifacts.release.interval import size
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.releases import Releases
from handoff.flows.progress import announce_step
from handoff.infra.cli.group import is_quiet
from handoff.infra.commands.registry import releases_of
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.settings import Settings, compiler_name
from handoff.infra.terminal.console import print_findings, print_json, print_table, seconds
from handoff.infra.terminal.output import echo
from handoff.infra.terminal.progress import shown_progress
from handoff.infra.terminal.step_times import (
    CACHED_STEP,
    KNOWN_CODE_STEP,
    WHOLE_RELEASE,
    StepTimes,
    read_times,
    times_folder,
)
from handoff.tasks.compile.caching.package_cache import package_cache_of
from handoff.tasks.compile.cross.fatbinary import find_fatbinary, needs_fatbinary
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.compile.messages import FindPackageJob, ReusedPart
from handoff.tasks.compile.toolchain import changes_since
from handoff.tasks.conformance.known_faults import known_wrong, preliminary_findings
from handoff.tasks.conformance.messages import KnownWrongJob
from handoff.tasks.inspect.messages import TraceabilityResult
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.registry.assemble import refuse_unsound
from handoff.tasks.registry.draft import require_free_alias
from handoff.tasks.release.jobs import Jobs, names_in_order
from handoff.tasks.steps import COMPILE, KNOWN_WRONG, step_of

# A store that doesn't answer is waited for by the flow, which says that in its run, too.
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class ReleasedVersion:
    """A version, and the aliases that stand for it."""

    manifest: Manifest
    version: int
    aliases: tuple[str, ...]


def find_unchanged(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str
) -> ReleasedVersion | None:
    """Return the version that `alias` stands for if this delivery and recipe would make it again.

    None as well where anything is in doubt or lost from the store: the flow says that better. What
    MLflow shows isn't asked for; `handoff sync` makes up for that.
    """
    try:
        model = read_contract(delivery).model.name
        releases = releases_of(settings, patience_s=_PATIENCE_S)
        head = releases.head(model)
        pointer = head.entry.aliases.get(alias) if head else None
        if head is None or pointer is None:
            return None
        manifest = releases.read(model, pointer).manifest
        digest = _digest(delivery)
        if digest != manifest.delivery:
            return None
        if fingerprint_release(digest, recipe, compiler_name()) != manifest.fingerprint:
            return None
        if not releases.is_complete(model, pointer):
            return None
        return ReleasedVersion(manifest, pointer.version, head.entry.aliases_of(pointer.version))
    except (HandoffError, OSError):
        return None


def _digest(delivery: Path) -> Digest | None:
    """Return the digest that taking the folder in would give it; None where it would refuse."""
    files = {}
    for entry in os.scandir(delivery):
        if entry.name == IGNORED_FOLDER and entry.is_dir(follow_symlinks=False):
            continue
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return None
        files[entry.name] = digest_file(Path(entry.path))
    return digest_tree(files)


R = TypeVar("R")


@dataclass(frozen=True)
class Rehearsal:
    """What a release would do: find `version` again, or build `targets`, and `why`.

    `known_faults` are notes on operators that this toolchain is known to get wrong. `targets` say
    for each target what is in the compile cache: the package whole, its code, or nothing; `times`
    hold the seconds that steps took in earlier releases of the model.
    """

    intake: IntakeResult
    traceability: TraceabilityResult
    fingerprint: Digest
    version: int | None
    why: str
    known_faults: tuple[Finding, ...]
    targets: dict[str, ReusedPart]
    times: StepTimes


def rehearse(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str, scratch: Path, *, rebuild: bool
) -> Rehearsal:
    """Find out what a release of the `delivery` would do; work in the folder `scratch`.

    Raises what a release would raise up to its first compilation.
    """
    # The cache is the home's, beside the workspace that a release would have.
    cache = package_cache_of(delivery, settings.home / "builds" / "packages")
    jobs = Jobs(scratch, recipe, rebuild, cache)
    process = StepProcess(
        ProcessPlan(
            "dry-run", ("intake",), recipe.extensions,
            reads=(delivery, cache), writes=(scratch,),
        ),
        scratch / "logs" / "steps.log",
    )  # fmt: skip
    try:
        intake = _step(process, IntakeJob(delivery, jobs.staging))
        traceability = _step(process, jobs.traceability())
        refuse_unsound(traceability)
        model = intake.contract.model.name
        fingerprint = fingerprint_release(intake.digest, recipe, compiler_name())
        version, why = _reason(settings, intake, recipe, fingerprint, alias)
        times = read_times(times_folder(settings), model)
        targets: dict[str, ReusedPart] = {}
        known_faults: tuple[Finding, ...] = ()
        if version is None or rebuild:
            optimized = _step(process, jobs.optimize())
            with announce_step(KNOWN_WRONG.name):
                known_faults = preliminary_findings(known_wrong(KnownWrongJob(
                    settings.stores, compiler_name(), recipe.resolved_targets(), recipe.options,
                    optimized.calls,
                )))  # fmt: skip
            for target in recipe.resolved_targets():
                job = FindPackageJob(jobs.compile(optimized, target))
                lookup = _step(process, job, f"look for {target.slug}")
                targets[target.slug] = lookup.reused
        if version is not None and rebuild:
            version, why = None, f"--rebuild asks for it, though version {version} is made of this"
        return Rehearsal(
            intake, traceability, fingerprint, version, why, known_faults, targets, times
        )
    finally:
        process.close()


def _step(process: StepProcess, job: Job[R], label: str = "") -> R:
    with announce_step(label or step_of(job).name) as announcement:
        reply = process.submit(job).result()
        announcement.seconds = reply.seconds
    return reply.result


def _reason(
    settings: Settings, intake: IntakeResult, recipe: Recipe, fingerprint: Digest, alias: str
) -> tuple[int | None, str]:
    """Return the version that would be found again, or None and why one would be built."""
    releases, model = releases_of(settings), intake.contract.model.name
    is_known = model in releases.models()
    head = releases.require_head(model).entry if is_known else None
    require_free_alias(head, alias)
    if head is None:
        return None, f"nothing was released as {model} before"
    existing = _find_release(releases, head, fingerprint)
    if existing is not None and releases.is_complete(model, existing.pointer):
        return existing.version, f"version {existing.version} was made of the same"
    if existing is not None:
        what = f"files of version {existing.version}, made of the same"
        return None, f"{what}, are lost from the store"
    if not head.kept:
        return None, "every version before was retired"
    newest = releases.find(model, None)
    changed = ", ".join(
        changes_since(releases.read(model, newest).manifest, intake.digest, recipe, compiler_name())
    )
    return None, f"changed since version {newest.version}: {changed}"


def _find_release(releases: Releases, head: LedgerEntry, fingerprint: Digest) -> LedgerEntry | None:
    """Return the newest release that was made from the same.

    It goes by the ledger itself: `Releases.find_by_fingerprint` needs copies that a release
    publishes first.
    """
    matching = (
        entry
        for entry in releases.entries_newest_first(head.model)
        if entry.action == "release" and entry.fingerprint == fingerprint
    )
    return next((entry for entry in matching if entry.version in head.kept), None)


def print_dry_run(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str, *, rebuild: bool, as_json: bool
) -> int:
    """Print what a release of the `delivery` would do; return its exit code so far.

    Raises what a release would raise up to its first compilation.
    """
    try:
        with shown_progress(), tempfile.TemporaryDirectory(prefix="handoff-dry-run-") as scratch:
            rehearsal = rehearse(settings, delivery, recipe, alias, Path(scratch), rebuild=rebuild)
    except HandoffError as error:
        if not as_json:
            raise
        print_json({"dry_run": True, "error": error.as_record()})
        return error.exit_code
    if as_json:
        print_json(_rehearsal_object(settings, rehearsal, recipe, alias))
    else:
        _print_rehearsal(settings, rehearsal, recipe, alias)
    return 0


def _rehearsal_object(
    settings: Settings, rehearsal: Rehearsal, recipe: Recipe, alias: str
) -> dict[str, Any]:
    expected = {step: rehearsal.times.expected(step) for step in _step_names(rehearsal, recipe)}
    expected[WHOLE_RELEASE] = rehearsal.times.expected(_total_key(rehearsal))
    return {
        "dry_run": True,
        "model": rehearsal.intake.contract.model.name,
        "verdict": rehearsal.traceability.verdict,
        "findings": to_plain((*rehearsal.traceability.findings, *rehearsal.known_faults)),
        "delivery": str(rehearsal.intake.digest),
        "fingerprint": str(rehearsal.fingerprint),
        "would": "build" if rehearsal.version is None else "reuse",
        "why": rehearsal.why,
        "version": rehearsal.version,
        "targets": [
            {
                "slug": slug,
                "cached": cached,
                "expected_s": _expected_s(rehearsal.times, slug, cached),
            }
            for slug, cached in rehearsal.targets.items()
        ],
        "steps": {step: took_s for step, took_s in expected.items() if took_s is not None},
        "store": settings.stores.objects,
        "registry": redact_uri(settings.stores.tracking_uri),
        "alias": alias,
        "recipe": to_plain(recipe),
    }


def _expected_s(times: StepTimes, slug: str, cached: ReusedPart) -> float | None:
    step = f"compile {slug}"
    return times.expected(CACHED_STEP.format(step=step) if cached else step)


def _total_key(rehearsal: Rehearsal) -> str:
    """Return the name of the times of releases that took as much from the cache as this would."""
    if not any(rehearsal.targets.values()):
        return WHOLE_RELEASE
    known, cached = (
        KNOWN_CODE_STEP.format(step=WHOLE_RELEASE),
        CACHED_STEP.format(step=WHOLE_RELEASE),
    )
    return cached if rehearsal.times.expected(known) is None else known


def _step_names(rehearsal: Rehearsal, recipe: Recipe) -> list[str]:
    """Return the names of the steps that would run; compilations are shown with their targets."""
    compiling = {f"{COMPILE.name} {slug}" for slug in rehearsal.targets}
    return [
        step
        for step in names_in_order(rehearsal.targets, recipe.torch.also)
        if step not in compiling
    ]


def _print_rehearsal(settings: Settings, rehearsal: Rehearsal, recipe: Recipe, alias: str) -> None:
    intake, model = rehearsal.intake, rehearsal.intake.contract.model.name
    would = "would be built" if rehearsal.version is None else "would be found again, and not built"
    echo(f"{model}: {would}: {rehearsal.why}")
    if is_quiet():
        return
    echo(f"  delivery    {rehearsal.traceability.verdict}, {intake.nodes} nodes, "
               f"{size(intake.weights_bytes)}, {intake.digest.short}")  # fmt: skip
    print_findings((*rehearsal.traceability.findings, *rehearsal.known_faults), again=True)
    echo(f"  fingerprint {rehearsal.fingerprint.short}")
    echo(f"  passes      {', '.join(one.name for one in recipe.passes) or 'none'}")
    stores = settings.stores
    echo(f"  registered  in {stores.objects}, as {model}@{alias}")
    echo(f"  shown       in {redact_uri(stores.tracking_uri)}")
    if rehearsal.targets:
        rows = [_target_row(rehearsal.times, *one) for one in rehearsal.targets.items()]
        print_table("", ("target", "package", "took before"), rows)
        _print_times(rehearsal, recipe)
    echo("Nothing was written: that was a dry run")


def _target_row(times: StepTimes, slug: str, cached: ReusedPart) -> tuple[str, str, str]:
    target = parse_target(slug)
    package = {"package": "in the cache", "code": "in the cache, for other weights", "": "compiled"}
    state = package[cached]
    if isinstance(target, CudaTarget) and not target.is_here:
        state += ", not verified: no such GPU here"
    if isinstance(target, CudaTarget) and needs_fatbinary(target) and not find_fatbinary():
        state = "can't be built: no fatbinary here ('handoff doctor' tells how to get it)"
    if isinstance(target, ArmTarget) and target.is_emulated:
        state += ", verified under emulation"
    expected = _expected_s(times, slug, cached)
    return (slug, state, "-" if expected is None else seconds(expected))


def _print_times(rehearsal: Rehearsal, recipe: Recipe) -> None:
    """Print what is known of the steps' times; nothing at the first release."""
    known = [(step, rehearsal.times.expected(step)) for step in _step_names(rehearsal, recipe)]
    times = [f"{step} {seconds(took_s)}" for step, took_s in known if took_s is not None]
    if times:
        echo(f"Last time on this machine: {', '.join(times)}")
    total_s = rehearsal.times.expected(_total_key(rehearsal))
    if total_s is not None:
        echo(f"The whole release took {seconds(total_s)}")
