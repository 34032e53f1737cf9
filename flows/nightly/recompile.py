"""The nightly recompile: every model that is served, rebuilt by today's toolchain and recipe.

survey -> the toolchain's operators, where nobody has asked them yet
       -+-> unchanged, which is said and costs nothing
        '-> one run a model: restore -> release -> compare three ways -> promote, or keep -> its row
-> the night's summary
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from prefect import flow
from prefect.runtime import flow_run

from handoff.artifacts.errors import (
    BlessingRefused,
    BuildCrashed,
    HandoffError,
    NightFailed,
    NotShownYet,
    PackageRefused,
    RegistryFailed,
)
from handoff.artifacts.host import HostSettings
from handoff.artifacts.night import ALARMING, NightRow, Outcome
from handoff.artifacts.recipe.target import parse_target
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.comparison import Comparison
from handoff.artifacts.release.manifest import Manifest
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.nightly.night import (
    NightWork,
    conform_tonight,
    night_stamp,
    rebuild_models,
    report_night,
    summarise_night,
)
from handoff.flows.pages import REFUSALS, own_page, report_refusals
from handoff.flows.parameters import EVERYTHING, Attempt, RebuildParameters, RecompileParameters
from handoff.flows.registering import ReleaseSpec
from handoff.flows.releasing import make_release, open_build_workspace
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.flows.steps import (
    append,
    catalogue,
    note_rows,
    optimize,
    pull,
    records,
    restore,
    run_reference,
    survey,
    three_way,
)
from handoff.flows.target.remote_targets import RemoteTargets, find_routes
from handoff.tasks.nightly.messages import NoteRowsJob, SurveyJob
from handoff.tasks.registry.append import Change, raise_as_not_shown
from handoff.tasks.registry.changes import Author, PromoteRequest
from handoff.tasks.registry.messages import CatalogueJob, PullJob, RecordsJob, RestoreJob
from handoff.tasks.registry.transitions import open_registrar
from handoff.tasks.release.processes import Processes
from handoff.tasks.timing.messages import ThreeWayJob


@dataclass(frozen=True)
class _VersionPair:
    """Both versions of a model: the one that is served, and the one that was made."""

    old: int
    new: int
    before: Manifest
    after: Manifest


def rebuild(
    host: HostSettings, parameters: RebuildParameters
) -> tuple[NightRow, HandoffError | None]:
    """Return what happened to a model, and what ended it early, if anything did."""
    began = time.monotonic()
    error: HandoffError | None = None
    try:
        with reschedule_machine_faults(host):
            row = _rebuild(host, parameters)
    except HandoffError as ended:
        error = ended
        # A crash is no verdict that the next night could go by.
        is_refused = isinstance(ended, REFUSALS) and not isinstance(ended, BuildCrashed)
        outcome: Outcome = "refused" if is_refused else "failed"
        row = NightRow(parameters.model, outcome, parameters.version, why=str(ended))
    took = time.monotonic() - began
    finished = replace(row, seconds=took, made_from=parameters.made_from, run=own_page(host))
    return finished, error


def _rebuild(host: HostSettings, parameters: RebuildParameters) -> NightRow:
    recipe, model, old = parameters.parsed_recipe(), parameters.model, parameters.version
    elsewhere = find_routes(recipe) if host.is_worker else RemoteTargets()
    with (
        open_build_workspace(host) as workspace,
        Processes(workspace, recipe, elsewhere=elsewhere.routes) as processes,
    ):
        restore_job = RestoreJob(host.stores, model, old, workspace / "delivered")
        restored = restore(processes.registrar(), restore_job)
        processes.set_delivery(restored.folder)
        release_parameters = parameters.as_release(str(restored.folder))
        with report_refusals(host, release_parameters, workspace) as release_attempt:
            release_attempt.delivery = restored.folder
            spec = ReleaseSpec(
                release_parameters,
                restored.folder,
                recipe,
                host,
                restored.lineage,
                release_attempt.began,
            )
            result = make_release(processes, spec, elsewhere)
        new: int = result["version"]
        if new == old:
            return NightRow(model, "unchanged", old, old, why="what was made is what is served")
        records_job = RecordsJob(host.stores, model, (old, new))
        pair = _VersionPair(old, new, *records(processes.registrar(), records_job).manifests)
        return _settle(processes, host, parameters, pair, compare(processes, host, pair))


def _pull_package(
    processes: Processes, host: HostSettings, model: str, version: int, target: str
) -> Path:
    """Return the folder of a version's packages for `target`, verified."""
    folder = processes.jobs.workspace / "versions" / f"{version}-{target}"
    pull(processes.registrar(), PullJob(model, version, folder, target, host.stores, None))
    return folder


def compare(processes: Processes, host: HostSettings, pair: _VersionPair) -> tuple[Comparison, ...]:
    """Compare both versions for every target that both have, beside eager and float64."""
    # A version that was found again has not made it yet.
    reference = processes.jobs.reference_file
    if not reference.exists():
        optimized = optimize(processes.graph, processes.jobs.optimize())
        run_reference(processes.runner(), processes.jobs.reference(optimized))
    outputs = tuple(spec.name for spec in pair.after.signature.outputs)
    before = {record.slug: record for record in pair.before.targets if record.accepted}
    comparisons = []
    for record in pair.after.targets:
        slug = record.slug
        if slug not in before or not record.accepted:
            continue
        missing, old = "", None
        try:
            old = _pull_package(processes, host, pair.before.model, pair.old, slug)
        except PackageRefused as error:
            missing = str(error)
        job = ThreeWayJob(
            target=slug,
            old=old,
            new=_pull_package(processes, host, pair.after.model, pair.new, slug),
            before=before[slug],
            after=record,
            staging=processes.jobs.staging,
            reference=reference,
            recipe=pair.after.recipe,
            outputs=outputs,
            old_version=pair.old,
            new_version=pair.new,
            old_missing=missing,
        )
        comparisons.append(three_way(processes.runner(parse_target(slug)), job, slug))
    return tuple(comparisons)


def _settle(
    processes: Processes,
    host: HostSettings,
    parameters: RebuildParameters,
    pair: _VersionPair,
    comparisons: tuple[Comparison, ...],
) -> NightRow:
    """Let the alias point to the new version, unless it is worse, or the alias was moved."""
    row = NightRow(parameters.model, "kept", pair.old, pair.new, comparisons=comparisons)
    worse = [reason for one in comparisons if one.verdict == "worse" for reason in one.reasons]
    if worse:
        return replace(row, why="; ".join(worse))
    measured = tuple(timing for one in comparisons for timing in one.side_by_side)
    request = PromoteRequest(parameters.model, pair.new, parameters.alias, measured=measured)
    author = Author(parameters.by, f"nightly: {'; '.join(parameters.changed)}", flow_run.id or "")
    change = Change(request, author, host.stores, host.key, expected=pair.old, is_conditional=True)
    try:
        appended = append(processes.registrar(), processes.signer(), change)
    except (BlessingRefused, RegistryFailed) as error:
        # A rule that is broken, or somebody who has moved the alias meanwhile: it stays.
        return replace(row, why=str(error))
    reasons = [reason for one in comparisons if one.verdict == "better" for reason in one.reasons]
    try:
        with raise_as_not_shown(parameters.model, appended):
            catalogue(processes.registrar(), CatalogueJob(host.stores, parameters.model))
    except NotShownYet as error:
        # It is done, and MLflow can be updated later.
        reasons.append(str(error))
    return replace(row, outcome="replaced", why="; ".join(reasons) or "as right and as fast")


@flow(**policies.RECOMPILE_MODEL)
def recompile_model(parameters: RebuildParameters, attempt: Attempt = 1) -> dict[str, Any]:
    """Rebuild one model and compare it with what is served; return its row of the night.

    The row is in the store before this ends, whatever comes of it, but for a crash and for what
    another worker is to try. Raises what the release or the comparison raised.
    """
    host = host_settings()
    row, error = rebuild(host, parameters)
    with open_registrar(host) as (registrar, _):
        note_rows(registrar, NoteRowsJob(host.stores, parameters.night, (row,)))
    if error is not None:
        raise error
    return cast(dict[str, Any], to_plain(row))


@flow(**policies.RECOMPILE)
def recompile(parameters: RecompileParameters = EVERYTHING, attempt: Attempt = 1) -> dict[str, Any]:
    """Rebuild what an alias serves; return the night's record.

    A model that fails stops no other; `NightFailed` is raised at the end where any did. A night
    that is begun again after a crash, or once its worker reaches the store again, goes on where it
    was.
    """
    host = host_settings()
    stamp = night_stamp(flow_run.id or "")
    job = SurveyJob(
        host.stores, parameters.alias, host.recipes, host.compiler, tuple(parameters.models)
    )
    with reschedule_machine_faults(host), open_registrar(host) as (registrar, scratch):
        surveyed = survey(registrar, job)
        work = NightWork(host, registrar, parameters, stamp)
        # First: which operators the toolchain gets wrong belongs into the records that follow.
        models = surveyed.models if parameters.conformance else ()
        operators = conform_tonight(host, registrar, models, stamp)
        rows = rebuild_models(work, surveyed.models, recompile_model)
        night = summarise_night(stamp, surveyed, parameters.alias, rows, operators)
        report_night(work, scratch / "night", night)
    if night.exit_status:
        bad = [f"{row.model}: {row.outcome}, {row.why}" for row in rows if row.outcome in ALARMING]
        raise NightFailed(
            f"{len(bad)} of {len(rows)} models could not be rebuilt",
            expected="every model replaced, kept or unchanged", got="; ".join(bad)[:2000],
            remedy="What serves them stays as it was. Look at their runs; the next night tries "
            "again",
        )  # fmt: skip
    return cast(dict[str, Any], to_plain(night))
