"""What is looked at once all is well again: versions, the night's record, what is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import psutil

from handoff.artifacts.mlflow.registry import NIGHTS
from handoff.artifacts.mlflow.standalone_runs import STAMP_TAG
from handoff.artifacts.night import Night, read_nights
from handoff.artifacts.release.releases import open_releases
from handoff.artifacts.stores.store import open_store
from tests.studies.outages.inspecting import kept_versions, see_half, see_unsettled
from tests.studies.outages.litter import see_litter
from tests.studies.outages.served.secrets import see_secrets
from tests.studies.outages.served.stack import ServedStack

_ENDS_S = 30.0


def versions_of(stack: ServedStack, model: str) -> list[int]:
    """Return the model's versions, by the ledger."""
    releases = open_releases(stack.stores.objects, stack.stores.trusted, None)
    return sorted(kept_versions(releases.entries(model)))


def nights_of(stack: ServedStack) -> tuple[Night, ...]:
    """Return all nights' records, the oldest first."""
    return read_nights(open_store(stack.stores.objects), 1000)


def see_registry(stack: ServedStack, model: str) -> list[str]:
    """Return what of a model is half there, or not made up for, in store and MLflow."""
    return [*see_half(stack.stores, model), *see_unsettled(stack.stores, model)]


def see_night(stack: ServedStack, earlier: int, outcomes: Mapping[str, Iterable[str]]) -> list[str]:
    """Return where there isn't one record more, with the outcomes that are expected."""
    new = nights_of(stack)[earlier:]
    if len(new) != 1:
        return [f"{len(new)} records of one night"]
    (night,) = new
    found = [
        f"{row.model} is {row.outcome}: {row.why[:300]}"
        for row in night.rows
        if row.outcome not in outcomes.get(row.model, ())
    ]
    if [row.model for row in night.rows] != sorted(outcomes):
        found.append(f"the night has rows of {[row.model for row in night.rows]}")
    return [*found, *_see_shown(stack, night)]


def _see_shown(stack: ServedStack, night: Night) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(stack.stores.tracking_uri)
    experiment = client.get_experiment_by_name(NIGHTS)
    runs = client.search_runs([experiment.experiment_id], max_results=1000) if experiment else []
    shown = [run for run in runs if run.data.tags.get(STAMP_TAG) == night.stamp]
    wanted = "FAILED" if night.exit_status else "FINISHED"
    if len(shown) != 1 or shown[0].info.status != wanted:
        return [f"MLflow shows the night in {[run.info.status for run in shown]}"]
    return []


def see_twice(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return which packages were compiled again that were there when the fault struck."""
    return [f"package {key[:12]}" for key, at in before.items() if after.get(key) != at]


def see_left(stack: ServedStack) -> list[str]:
    """Return processes of flow runs and steps, files and secrets that nobody needs any more."""
    deadline = time.monotonic() + _ENDS_S
    while (left := see_processes(stack)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [*left, *see_litter(stack.stores, home=stack.home), *see_secrets(stack)]


def see_processes(stack: ServedStack) -> list[str]:
    """Return what lives for this stack beside its services, or without its supervisor."""
    ours = {one.pid for one in stack.tree()}
    names = (str(stack.home), str(stack.place.database), f"--port {stack.prefect_port}")
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        ours_alone = ("prefect.flow_run", "engine.worker", "engine.forkserver")
        is_work = any(f"handoff.infra.{name}" in line for name in ours_alone)
        with suppress(psutil.Error):
            texts = [line, *(process.environ().values())]
            is_ours = process.pid in ours or any(name in text for text in texts for name in names)
            if is_ours and (is_work or process.pid not in ours) and process.status() != "zombie":
                found.append(f"process {process.pid} is left: {line[:120]}")
    return found
