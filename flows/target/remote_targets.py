"""Targets of a release that are built where their hardware is: in a work pool of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Failed

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import HandoffError, StepCrashed, StoreFailed
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import replace_folder
from handoff.artifacts.recipe.gpu_generations import cuda_slug
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CudaTarget, Target
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.manifest import ANSWER_FILE, TargetAnswer
from handoff.flows import policies
from handoff.flows.children import ChildRun, find_deployment, start, wait_for
from handoff.flows.names import deployment_name, target_pool
from handoff.flows.registering import ReleaseSpec
from handoff.flows.steps import receive, send
from handoff.tasks.fetch.messages import ReceiveJob, SendJob
from handoff.tasks.registry import target_record
from handoff.tasks.registry.target_record import BuiltTargets
from handoff.tasks.release.processes import Processes

_ANSWER = "its folder is {}"
_PARTS = re.compile(_ANSWER.format("(sha256:[0-9a-f]{64})"))


@dataclass(frozen=True)
class RemoteTargets:
    """Which targets are built elsewhere, by which deployment, and what is to be said of the others.

    A target whose deployment `build-target/SLUG` has a worker that is online is built there, also
    where this machine could do it: who gives a target a pool wants it built there. One for GPUs of
    several generations goes to the first of its GPUs that has a worker.
    """

    routes: Mapping[str, UUID] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_routes(recipe: Recipe) -> RemoteTargets:
    """Ask Prefect's server which of the recipe's targets have machines of their own."""
    routes, notes = {}, []
    with get_client(sync_client=True) as client:
        for target in recipe.resolved_targets():
            names = _hardware_slugs(target)
            deployments = (
                find_deployment(client, deployment_name("build-target", name)) for name in names
            )
            deployment = next(filter(None, deployments), None)
            if deployment is not None:
                routes[target.slug] = deployment
            elif isinstance(target, CudaTarget) and not target.is_here:
                pools = " or ".join(map(target_pool, names))
                notes.append(
                    f"{target.slug}: no worker of a pool {pools} is online, so "
                    "that its package is built without a GPU and not verified"
                )
    return RemoteTargets(routes, tuple(notes))


def _hardware_slugs(target: Target) -> tuple[str, ...]:
    """Return the targets whose pools have hardware for this one."""
    if isinstance(target, CudaTarget):
        return tuple(cuda_slug([member]) for member in target.members)
    return (target.slug,)


def send_targets(
    processes: Processes, spec: ReleaseSpec, routes: Mapping[str, UUID], key: str
) -> dict[str, FlowRun]:
    """Send the delivery to where targets are built, and start a run for each; return them by slug.

    `key` stands for what is built, so that a release which is repeated finds its runs again.
    """
    if not routes:
        return {}
    sent = send(processes.registrar(), SendJob(spec.host.stores, processes.jobs.staging))
    runs = {}
    with get_client(sync_client=True) as client:
        for slug, deployment in routes.items():
            parameters = {
                "delivery": str(sent.parts),
                "label": spec.parameters.label,
                "target": slug,
                "recipe": to_plain(spec.recipe),
                "rebuild": spec.parameters.rebuild,
            }
            name = f"build {spec.parameters.label} for {slug}"
            child = ChildRun(
                deployment, f"build:{key}:{slug}", {"parameters": parameters}, name=name
            )
            runs[slug] = start(client, child)
    return runs


def format_answer(label: str, verdict: str, parts: Digest) -> str:
    """Return what a target's run says at its end: where its answer is, for `collect_targets`."""
    return f"{label}: {verdict}; {_ANSWER.format(parts)}"


def collect_targets(
    processes: Processes,
    spec: ReleaseSpec,
    runs: Mapping[str, FlowRun],
    delivery: Digest,
    local: BuiltTargets,
) -> BuiltTargets:
    """Wait for the runs, fetch what they made into the release, and put it beside our own.

    A run that fails, or answers for something else than was asked, is its target's refusal. What
    gave no package that can be shipped isn't found again by a later release, which starts again.
    """
    ended = wait_for(runs.values(), policies.WAITS_S["elsewhere"])
    records = {record.slug: record for record in local.records}
    toolchain, plan, asked = dict(local.toolchain), local.plan, dict(local.asked)
    for slug, first in runs.items():
        run = ended[first.id]
        try:
            answer = _fetch(processes, spec, slug, run)
            _require_matching_answer(slug, answer, delivery, plan)
        except StepCrashed as error:
            _dismiss(run)
            records[slug] = target_record.refuse_target(slug, error)
            continue
        except HandoffError:
            _dismiss(run)
            raise
        if not (answer.record.accepted or answer.record.unverified):
            _dismiss(run)
        plan = plan or answer.plan
        asked |= answer.asked
        records[slug] = answer.record
        # What the release was made with here is listed first; other machines add to it.
        toolchain = {**{f"{slug}: {k}": v for k, v in answer.toolchain.items()}, **toolchain}
    return BuiltTargets(
        tuple(records[target.slug] for target in spec.recipe.resolved_targets()),
        toolchain,
        plan,
        asked,
    )


def _fetch(processes: Processes, spec: ReleaseSpec, slug: str, run: FlowRun) -> TargetAnswer:
    state = run.state
    match = _PARTS.search(state.message or "") if state and state.is_final() else None
    if match is None:
        raise StepCrashed(
            f"the run {run.name}, which builds {slug}, gave no package",
            expected="a run that is completed",
            got=f"{state.name}: {(state.message or '')[:500]}" if state else "none",
            remedy="Look at that run in Prefect, then run the same release again",
        )
    folder = processes.jobs.workspace / "elsewhere" / slug
    receive(processes.registrar(), ReceiveJob(spec.host.stores, Digest(match.group(1)), folder))
    answer = _read_answer(folder / ANSWER_FILE)
    processes.jobs.release.mkdir(parents=True, exist_ok=True)
    built = folder / slug
    if built.is_dir():
        replace_folder(built, processes.jobs.release / slug)
    return answer


def _read_answer(file: Path) -> TargetAnswer:
    try:
        return from_plain(TargetAnswer, parse_json(file.read_bytes()), ANSWER_FILE)
    except ValueError as error:
        raise StoreFailed(
            "the answer of the target's machine can't be read", expected="what Handoff sends",
            got=str(error)[:300], remedy="Is the same Handoff there? Then run the release again",
        ) from error  # fmt: skip


def _dismiss(run: FlowRun) -> None:
    """Let no later release find a completed run whose answer is of no use: it would be again.

    What the run says stays, for a release that waits for the same one beside this.
    """
    if run.state is None or not run.state.is_completed():
        return
    with get_client(sync_client=True) as client:
        dismissed: State[Any] = Failed(name="Dismissed", message=run.state.message)
        client.set_flow_run_state(run.id, dismissed, force=True)


def _require_matching_answer(slug: str, answer: TargetAnswer, delivery: Digest, plan: str) -> None:
    """Raise `StepCrashed` for an answer about another delivery, target or input plan."""
    expected = (slug, delivery, plan or answer.plan)
    actual = (answer.record.slug, answer.delivery, answer.plan)
    if expected != actual:
        raise StepCrashed(
            f"what was built elsewhere for {slug} is something else",
            expected=" ".join(map(str, expected)), got=" ".join(map(str, actual)),
            remedy="Give that pool's machines the same Handoff and torch as this one",
        )  # fmt: skip
