"""The body of a release, which `release` and `recompile-model` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.uri import LocalSource, parse_delivery_uri
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.host import HostSettings
from handoff.artifacts.recipe.reading import recipe_for
from handoff.flows.parameters import ReleaseParameters
from handoff.flows.registering import ReleaseSpec, register, register_again
from handoff.flows.steps import (
    capture,
    fetch,
    inspect,
    known_wrong,
    look_up,
    open_key,
    optimize,
    take_in,
)
from handoff.flows.target.remote_targets import RemoteTargets, collect_targets, send_targets
from handoff.flows.target.targets import build
from handoff.infra.engine.child import StepProcess
from handoff.infra.engine.workspaces import keep_workspace, open_workspace, remove_workspace
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.conformance.messages import KnownWrongJob
from handoff.tasks.fetch.messages import FetchJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.recipe_names import require_known_names, try_read_contract
from handoff.tasks.registry import assemble
from handoff.tasks.registry.messages import KeyJob, LookUpJob
from handoff.tasks.registry.sign import require_accepted
from handoff.tasks.release.processes import FETCHER, Processes


@contextmanager
def open_build_workspace(host: HostSettings) -> Iterator[Path]:
    """Give the folder of this build: the host's, or a new one that only a refusal leaves behind."""
    if host.workspace is not None:
        yield host.workspace
        return
    workspace = open_workspace(host.builds)
    try:
        yield workspace
    except HandoffError:
        keep_workspace(workspace)
        raise
    remove_workspace(workspace)


def fetch_delivery(parameters: ReleaseParameters, workspace: Path) -> Path:
    """Return the delivery's folder on this machine, fetched into the workspace where it isn't one.

    Raises `DeliveryUnreachable` and `UsageProblem` for what can't be fetched.
    """
    source = parse_delivery_uri(parameters.delivery)
    if isinstance(source, LocalSource) and source.path.is_dir():
        return source.path
    log = workspace / "logs" / "fetch.log"
    with closing(StepProcess(FETCHER, log)) as process:
        return fetch(process, FetchJob(parameters.delivery, workspace / "delivered")).folder


def plan_release(
    parameters: ReleaseParameters, host: HostSettings, delivery: Path, began: str
) -> ReleaseSpec:
    """Return what is to be released, with the recipe that is the model's own where none is given.

    It was begun at `began`, in ISO 8601.
    """
    recipe = parameters.parsed_recipe()
    if recipe is None:
        recipe = recipe_for(host.recipes, parameters.model or read_contract(delivery).model.name)
    assemble.require_trial_alias(recipe, parameters.alias)
    recipe.require_attainable()
    require_known_names(recipe, try_read_contract(delivery))
    return ReleaseSpec(parameters, delivery, recipe, host, parameters.lineage, began)


def make_release(
    processes: Processes, spec: ReleaseSpec, elsewhere: RemoteTargets
) -> dict[str, Any]:
    """Make a version of what is wanted, or find the one that was made before from the same.

    Targets that are built `elsewhere` are sent there as soon as the delivery is known to be sound.
    Raises `DeliveryUnreadable`, `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or
    `RegistryFailed`; nothing is released then, but for `NotShownYet`, which says that it is.
    """
    parameters, host, recipe = spec.parameters, spec.host, spec.recipe
    key_opening = open_key.submit(processes.signer(), KeyJob(host.key, host.stores.trusted))
    # It starts while the delivery is taken in.
    registrar = processes.registrar()
    taken = take_in(processes.graph, IntakeJob(spec.delivery, processes.jobs.staging))
    taken = assemble.with_source(taken, parameters.model or "", spec.lineage)
    model = taken.contract.model.name
    fingerprint = fingerprint_release(taken.digest, recipe, host.compiler)
    lookup_job = LookUpJob(
        model, fingerprint, host.stores, parameters.alias, taken.digest, recipe, host.compiler
    )
    earlier = look_up.submit(registrar, lookup_job)
    # What could not be signed is not built.
    key_opening.result()
    # Nor is what is there already judged again: the same delivery was, by the same code.
    known = earlier.result()
    if known.version and not parameters.rebuild:
        return register_again(processes, spec, model, fingerprint, known)
    judged = inspect(processes.graph, processes.jobs.traceability(spec.lineage))
    assemble.record_unsound(
        processes.jobs.release,
        recipe=recipe,
        taken=taken,
        judged=judged,
        fingerprint=fingerprint,
        began=spec.began,
    )
    assemble.refuse_unsound(judged)
    key = f"{fingerprint.hex}{flow_run.id if parameters.rebuild else ''}"
    remote_runs = send_targets(processes, spec, elsewhere.routes, key)
    optimized = optimize(processes.graph, processes.jobs.optimize())
    faults_job = KnownWrongJob(
        host.stores, host.compiler, recipe.resolved_targets(), recipe.options, optimized.calls
    )
    faults = known_wrong.submit(registrar, faults_job)
    # The graph is on disk now, and what read it holds as much memory as a compiler.
    processes.graph.close()
    signature = assemble.signature_of(taken.contract, optimized)
    built = build(processes, optimized, signature, faults)
    if remote_runs:
        built = collect_targets(processes, spec, remote_runs, taken.digest, built)
    # Alone, because it times what it captures.
    captures = capture(processes.jobs) if recipe.captures else ()
    manifest = assemble.assemble(
        processes.jobs.release,
        recipe=recipe,
        taken=taken,
        judged=judged,
        fingerprint=fingerprint,
        optimized=optimized,
        signature=signature,
        built=built,
        captures=captures,
        served=known.served,
        known=faults.result(),
        began=spec.began,
    )
    require_accepted(manifest)
    result = register(processes, spec, manifest)
    return {**result, "notes": (*result["notes"], *elsewhere.notes)}
