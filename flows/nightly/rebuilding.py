"""One model of a night: rebuilt, compared with what is served, and promoted or not."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from prefect.runtime import flow_run

from handoff.artifacts.errors import (
    BlessingRefused,
    BuildCrashed,
    HandoffError,
    NotShownYet,
    PackageRefused,
    RegistryFailed,
)
from handoff.artifacts.nightly.night import NightRow, Outcome
from handoff.artifacts.recipe.target import parse_target
from handoff.artifacts.release.comparison import Comparison
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.site import Site
from handoff.flows.parameters import RebuildParameters
from handoff.flows.refusing import REFUSALS, refusals_shown
from handoff.flows.registering import Wanted
from handoff.flows.releasing import make_release, opened_workspace
from handoff.flows.showing import own_page
from handoff.flows.steps import (
    append,
    catalogue,
    optimize,
    pull,
    records,
    restore,
    run_reference,
    three_way,
)
from handoff.flows.target.elsewhere import Elsewhere, find_routes
from handoff.tasks.registry.appending import Change, told_as_done
from handoff.tasks.registry.changes import Author, PromoteRequest
from handoff.tasks.registry.messages import CatalogueJob, PullJob, RecordsJob, RestoreJob
from handoff.tasks.release.processes import Processes
from handoff.tasks.timing.messages import ThreeWayJob


@dataclass(frozen=True)
class _Pair:
    """Both versions of a model: the one that is served, and the one that was made."""

    old: int
    new: int
    before: Manifest
    after: Manifest


def rebuild(site: Site, parameters: RebuildParameters) -> tuple[NightRow, HandoffError | None]:
    """Return what happened to a model, and what ended it early, if anything did."""
    began = time.monotonic()
    error: HandoffError | None = None
    try:
        row = _rebuild(site, parameters)
    except HandoffError as ended:
        error = ended
        # A crash is no verdict that the next night could go by.
        is_refused = isinstance(ended, REFUSALS) and not isinstance(ended, BuildCrashed)
        outcome: Outcome = "refused" if is_refused else "failed"
        row = NightRow(parameters.model, outcome, parameters.version, why=str(ended))
    took = time.monotonic() - began
    told = replace(row, seconds=took, made_from=parameters.made_from, run=own_page(site))
    return told, error


def _rebuild(site: Site, parameters: RebuildParameters) -> NightRow:
    recipe, model, old = parameters.parsed_recipe(), parameters.model, parameters.version
    elsewhere = find_routes(recipe) if site.is_worker else Elsewhere()
    with (
        opened_workspace(site) as workspace,
        Processes(workspace, recipe, elsewhere=elsewhere.routes) as processes,
    ):
        restoring = RestoreJob(site.stores, model, old, workspace / "delivered")
        restored = restore(processes.registrar(), restoring)
        processes.know(restored.folder)
        asked = parameters.as_release(str(restored.folder))
        with refusals_shown(site, asked, workspace) as attempted:
            attempted.delivery = restored.folder
            wanted = Wanted(asked, restored.folder, recipe, site, restored.lineage, attempted.began)
            told = make_release(processes, wanted, elsewhere)
        new: int = told["version"]
        if new == old:
            return NightRow(model, "unchanged", old, old, why="what was made is what is served")
        asking = RecordsJob(site.stores, model, (old, new))
        pair = _Pair(old, new, *records(processes.registrar(), asking).manifests)
        return _settle(processes, site, parameters, pair, compare(processes, site, pair))


def _pulled(processes: Processes, site: Site, model: str, version: int, target: str) -> Path:
    """Return the folder of a version's packages for `target`, verified."""
    folder = processes.jobs.workspace / "versions" / f"{version}-{target}"
    pull(processes.registrar(), PullJob(model, version, folder, target, site.stores, None))
    return folder


def compare(processes: Processes, site: Site, pair: _Pair) -> tuple[Comparison, ...]:
    """Compare both versions for every target that both have, beside eager and float64."""
    # A version that was found again has not made it yet.
    reference = processes.jobs.reference_file
    if not reference.exists():
        optimized = optimize(processes.graph, processes.jobs.optimize())
        run_reference(processes.runner(), processes.jobs.reference(optimized))
    outputs = tuple(spec.name for spec in pair.after.signature.outputs)
    before = {record.slug: record for record in pair.before.targets if record.accepted}
    found = []
    for record in pair.after.targets:
        slug = record.slug
        if slug not in before or not record.accepted:
            continue
        missing, old = "", None
        try:
            old = _pulled(processes, site, pair.before.model, pair.old, slug)
        except PackageRefused as error:
            missing = str(error)
        job = ThreeWayJob(
            target=slug,
            old=old,
            new=_pulled(processes, site, pair.after.model, pair.new, slug),
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
        found.append(three_way(processes.runner(parse_target(slug)), job, slug))
    return tuple(found)


def _settle(
    processes: Processes,
    site: Site,
    parameters: RebuildParameters,
    pair: _Pair,
    comparisons: tuple[Comparison, ...],
) -> NightRow:
    """Let the alias stand for the new version, unless it is worse, or the alias was moved."""
    told = NightRow(parameters.model, "kept", pair.old, pair.new, comparisons=comparisons)
    worse = [reason for one in comparisons if one.verdict == "worse" for reason in one.reasons]
    if worse:
        return replace(told, why="; ".join(worse))
    measured = tuple(beside for one in comparisons for beside in one.beside)
    request = PromoteRequest(parameters.model, pair.new, parameters.alias, measured=measured)
    author = Author(parameters.by, f"nightly: {'; '.join(parameters.changed)}", flow_run.id or "")
    change = Change(request, author, site.stores, site.key, expected=pair.old, is_conditional=True)
    try:
        appended = append(processes.registrar(), processes.signer(), change)
    except (BlessingRefused, RegistryFailed) as error:
        # A rule that is broken, or somebody who has moved the alias meanwhile: it stays.
        return replace(told, why=str(error))
    reasons = [reason for one in comparisons if one.verdict == "better" for reason in one.reasons]
    try:
        with told_as_done(parameters.model, appended):
            catalogue(processes.registrar(), CatalogueJob(site.stores, parameters.model))
    except NotShownYet as error:
        # It is done, and MLflow can be told later.
        reasons.append(str(error))
    return replace(told, outcome="replaced", why="; ".join(reasons) or "as right and as fast")
