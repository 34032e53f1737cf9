"""Where the figures come from: the Prefect server, the release store, and this machine's home."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.digest import Digest
from handoff.artifacts.night import read_nights
from handoff.artifacts.release.manifest import Manifest
from handoff.flows.names import CONFORMANCE, RECOMPILE, RECOMPILE_MODEL, RELEASE
from handoff.infra.commands.registry import releases_of
from handoff.infra.metrics import families
from handoff.infra.metrics.families import Sample
from handoff.infra.prefect.pools import online_workers
from handoff.infra.prefect.prefect_api import explain_prefect_errors
from handoff.infra.settings import Settings
from handoff.infra.terminal.step_times import read_times, times_folder
from handoff.infra.triggers.spool import Spool

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_FLOWS = tuple(
    name.partition("/")[0] for name in (RELEASE, RECOMPILE, RECOMPILE_MODEL, CONFORMANCE)
)
# A look has to end before the next one.
_PATIENCE_S = 5.0
_MODELS = 500
# What is served by; figures of a candidate say nothing about what callers get.
_SERVED = "production"


def prefect_samples(client: SyncPrefectClient) -> Iterator[Sample]:
    """Give runs by flow and state, and queue and workers of each pool.

    Raises `EnvironmentLacking` where the server can't be asked.
    """
    from prefect.client.schemas.objects import StateType

    with explain_prefect_errors(
        "to be asked for its runs", "a question that it knows", "It is asked again"
    ):
        for flow in _FLOWS:
            for state in StateType:
                count = _count(client, flow=flow, states=(state,))
                yield Sample(families.FLOW_RUNS, (flow, state.value.lower()), count)
        for pool, workers in online_workers(client).items():
            yield Sample(families.QUEUED, (pool,), _count_queued(client, pool))
            yield Sample(families.WORKERS, (pool,), len(workers))


def _count_queued(client: SyncPrefectClient, pool: str) -> int:
    """Return how many runs of a pool are due and aren't running."""
    from prefect.client.schemas.objects import StateType

    due = _count(client, pool=pool, states=(StateType.SCHEDULED,), before=datetime.now(UTC))
    return due + _count(client, pool=pool, states=(StateType.PENDING,))


def _count(
    client: SyncPrefectClient, *, states: tuple[Any, ...], flow: str = "", pool: str = "",
    before: datetime | None = None,
) -> int:  # fmt: skip
    from prefect.client.schemas import filters

    conditions: dict[str, Any] = {
        "state": filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=list(states)))
    }
    if before is not None:
        conditions["next_scheduled_start_time"] = filters.FlowRunFilterNextScheduledStartTime(
            before_=before
        )
    other_filters: dict[str, Any] = {}
    if flow:
        other_filters["flow_filter"] = filters.FlowFilter(name=filters.FlowFilterName(any_=[flow]))
    if pool:
        name = filters.WorkPoolFilterName(any_=[pool])
        other_filters["work_pool_filter"] = filters.WorkPoolFilter(name=name)
    return client.count_flow_runs(
        flow_run_filter=filters.FlowRunFilter(**conditions), **other_filters
    )


def store_samples(settings: Settings, manifests: dict[Digest, Manifest]) -> Iterator[Sample]:
    """Give each model's versions, aliases and figures, and the newest night.

    `manifests` has the records that were read before, by the signed releases' digests: they don't
    change. Raises `StoreFailed` or `RegistryFailed` where the store can't be read.
    """
    releases = releases_of(settings, patience_s=_PATIENCE_S)
    for model in releases.models():
        entry = releases.require_head(model).entry
        yield Sample(families.VERSIONS, (model,), len(entry.kept))
        yield Sample(families.LEDGER, (model,), datetime.fromisoformat(entry.at).timestamp())
        for alias, pointer in entry.aliases.items():
            yield Sample(families.ALIAS, (model, alias), pointer.version)
        if served := entry.aliases.get(_SERVED):
            if served.release not in manifests:
                manifests[served.release] = releases.read(model, served).manifest
            yield from _version_samples(manifests[served.release], model)
    for night in read_nights(releases.store, 1):
        yield Sample(families.NIGHT_ENDED, (), datetime.fromisoformat(night.ended).timestamp())
        for outcome, count in Counter(row.outcome for row in night.rows).items():
            yield Sample(families.NIGHT_MODELS, (outcome,), count)
        built = Counter(
            comparison.new.reused or "nothing"
            for row in night.rows
            for comparison in row.comparisons
        )
        for reused, count in built.items():
            yield Sample(families.NIGHT_PACKAGES, (reused,), count)


def _version_samples(manifest: Manifest, model: str) -> Iterator[Sample]:
    for target in manifest.targets:
        labels = (model, _SERVED, target.slug)
        if target.speedup is not None:
            yield Sample(families.SPEEDUP, labels, target.speedup)
        if target.rmse_ratio is not None:
            yield Sample(families.RMSE, labels, target.rmse_ratio)


def home_samples(settings: Settings) -> Iterator[Sample]:
    """Give disks, commits that wait, and the steps' times.

    Raises `OSError` where a folder can't be looked at.
    """
    folders = {"home": settings.home}
    if "://" not in settings.stores.objects:
        folders["store"] = Path(settings.stores.objects)
    for name, folder in folders.items():
        if folder.is_dir():
            disk = shutil.disk_usage(folder)
            yield Sample(families.DISK_FREE, (name,), disk.free)
            yield Sample(families.DISK_SIZE, (name,), disk.total)
    models = sorted(path.stem for path in times_folder(settings).glob("*.json"))
    for model in models[:_MODELS]:
        for step, took_s in read_times(times_folder(settings), model).medians().items():
            yield Sample(families.STEP, (model, step), took_s)
    spool = Spool(settings.home)
    yield Sample(families.WAITING, (), len(spool.list_waiting()))
    yield Sample(families.SET_ASIDE, (), len(spool.list_set_aside()))
