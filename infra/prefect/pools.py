"""Prefect's work pools, made where they are missing, and the workers that poll them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from handoff.infra.prefect.deployments import POOLS
from handoff.infra.prefect.prefect_api import told_in_sentences

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def ensure_pools(client: SyncPrefectClient, names: Iterable[str]) -> None:
    """Make the pools that are missing; leave the others as they are."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    for name in names:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            pool = WorkPoolCreate(
                name=name, type="process", description=POOLS.get(name),
                base_job_template=ProcessWorker.get_default_base_job_template(),
            )  # fmt: skip
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                continue  # somebody was quicker, such as a worker that starts


def make_pools(api: str, login: str, names: Iterable[str]) -> None:
    """Make the pools that are missing, of the type process; leave the others as they are."""
    with _client(api, login) as client:
        ensure_pools(client, names)


def is_online(api: str, login: str, pool: str, worker: str, started: float) -> bool:
    """Tell whether a worker has been heard of since `started`, in seconds since 1970.

    Prefect believes that one is online for minutes after it died: a word from an earlier process of
    that name is none from this one.
    """
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    since = datetime.datetime.fromtimestamp(started, datetime.UTC)
    try:
        with _client(api, login) as client:
            workers = client.read_workers_for_work_pool(pool)
    except (httpx.HTTPError, PrefectHTTPStatusError):
        return False
    return any(
        each.name == worker
        and each.status == "ONLINE"
        and each.last_heartbeat_time is not None
        and each.last_heartbeat_time >= since
        for each in workers
    )


@contextmanager
def paused_pool(api: str, login: str, name: str) -> Iterator[None]:
    """Let a pool give out nothing in the body; one that somebody paused before stays paused.

    Raises `EnvironmentLacking` for a server that doesn't answer.
    """
    from prefect.client.schemas.actions import WorkPoolUpdate

    def pause(is_paused: bool) -> None:
        with (
            told_in_sentences("to pause a pool", "a pool", "'handoff down --now' asks no server"),
            _client(api, login) as client,
        ):
            client.update_work_pool(name, WorkPoolUpdate(is_paused=is_paused))

    with (
        told_in_sentences("a pool", "a pool", "'handoff down --now' asks no server"),
        _client(api, login) as client,
    ):
        was_paused = client.read_work_pool(name).is_paused
    pause(True)
    try:
        yield
    finally:
        if not was_paused:
            pause(False)


def _client(api: str, login: str) -> SyncPrefectClient:
    from prefect.client.orchestration import SyncPrefectClient

    return SyncPrefectClient(api, auth_string=login or None, httpx_settings={"trust_env": False})
