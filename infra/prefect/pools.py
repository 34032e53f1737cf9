"""Prefect's work pools, the workers that poll them, and each flow run's share of the cores.

A worker with several slots gives its flow runs the sets of cores by an environment variable; each
takes one that is free and leaves it by ending, however it ends: what says that a set is taken is a
lock on a file. A compile beside another one on the same cores would take twice as long, and what is
timed there would say little.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.locks import try_lock
from handoff.artifacts.printable import one_line
from handoff.artifacts.waiting import poll_for
from handoff.infra.prefect.deployments import POD_TYPE, POOLS
from handoff.infra.prefect.prefect_api import connected_client, open_client

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import WorkPool


CORE_SETS_VARIABLE = "HANDOFF_CORE_SETS"
# What the names of Handoff's pools begin with, and how many pools a server is asked for.
_PREFIX = "handoff-"
_MAX_POOLS = 200
# A run whose end was asked for holds its cores until it has ended.
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
# Held until this process ends.
_held_locks: list[int] = []


def split_cores(cores: Iterable[int], shares: int) -> list[tuple[int, ...]]:
    """Return so many shares of the cores; those beside each other, which share caches, together."""
    ordered = sorted(cores)
    share, remainder = divmod(len(ordered), shares)
    sets, begin = [], 0
    for index in range(shares):
        end = begin + share + (index < remainder)
        sets.append(tuple(ordered[begin:end]))
        begin = end
    return sets


def core_sets_variable(pool: str, sets: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return the variable that gives a pool's flow runs the sets."""
    return {CORE_SETS_VARIABLE: " ".join([pool, *(",".join(map(str, cores)) for cores in sets)])}


def take_cores(environment: Mapping[str, str], folder: Path) -> tuple[int, ...]:
    """Let this process, and what it starts, use a free set alone; return it, () for none.

    `folder` holds the locks: one for all flow runs of a user on this machine. Where no set becomes
    free for a minute, which slots and sets of equal number don't let happen, all cores are used.
    """
    pool, *sets = environment.get(CORE_SETS_VARIABLE, "").split() or [""]
    if not sets:
        return ()
    for _ in poll_for(_PATIENCE_S, _PAUSE_S):
        for text in sets:
            if _take_lock(folder / f"cores-{pool}-{text.replace(',', '_')}.lock"):
                cores = tuple(map(int, text.split(",")))
                os.sched_setaffinity(0, cores)
                return cores
    return ()


def _take_lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor):
        os.close(descriptor)
        return False
    _held_locks.append(descriptor)
    return True


def ensure_pools(
    client: SyncPrefectClient, names: Iterable[str],
    in_pods: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> frozenset[str]:  # fmt: skip
    """Make the pools that are missing; return those of the names whose runs get a pod each.

    `in_pods` are the base job templates of such (`infra.prefect.pods`), which are brought up to
    date; other pools stay as they are. Raises `UsageProblem` for one of another type: Prefect
    changes none.
    """
    from prefect.client.schemas.actions import WorkPoolUpdate

    pod_pools = set()
    for name in names:
        template = in_pods.get(name)
        existing = _ensure_pool(client, name, template)
        if template and existing.base_job_template != template:
            _require_pods(name, existing.type)
            client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))
        if existing.type == POD_TYPE:
            pod_pools.add(name)
    return frozenset(pod_pools)


def _ensure_pool(client: SyncPrefectClient, name: str, template: dict[str, Any] | None) -> WorkPool:
    """Return the pool, made where it is missing: for pods where there is a template of such."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        return client.read_work_pool(name)
    except ObjectNotFound:
        pool = WorkPoolCreate(
            name=name, type=POD_TYPE if template else "process", description=POOLS.get(name),
            base_job_template=template or ProcessWorker.get_default_base_job_template(),
        )  # fmt: skip
    try:
        return client.create_work_pool(pool)
    except ObjectAlreadyExists:
        return client.read_work_pool(name)  # somebody was quicker, such as a worker that starts


def _require_pods(name: str, kind: str) -> None:
    if kind != POD_TYPE:
        raise UsageProblem(
            "Prefect doesn't change a pool's type", expected=f"{name} of the type {POD_TYPE}",
            got=f"one of the type {one_line(kind)[:40]}",
            remedy=f"Stop its workers, let its runs end, delete it ('prefect work-pool delete "
            f"{name}'), and run this again: it is made with its deployments",
        )  # fmt: skip


def require_process_pool(client: SyncPrefectClient, name: str) -> None:
    """Raise `UsageProblem` for a pool whose runs get a pod each: no worker of ours is for it."""
    from prefect.exceptions import ObjectNotFound

    try:
        existing = client.read_work_pool(name)
    except ObjectNotFound:
        return  # Prefect's worker makes it, or says why not
    if existing.type != "process":
        raise UsageProblem(
            f"each run of {name} gets a pod of its own", expected="a pool of the type process",
            got=f"one of the type {one_line(existing.type)[:40]}",
            remedy=f"Prefect's own worker makes them: 'prefect worker start --type {POD_TYPE} "
            f"--pool {name}'. Or name another pool",
        )  # fmt: skip


def online_workers(client: SyncPrefectClient) -> dict[str, list[str]]:
    """Return the names of the workers that are online, by Handoff's pools."""
    from prefect.client.schemas.objects import WorkerStatus

    return {
        pool.name: [
            worker.name
            for worker in client.read_workers_for_work_pool(pool.name)
            if worker.status == WorkerStatus.ONLINE
        ]
        for pool in client.read_work_pools(limit=_MAX_POOLS)
        if pool.name.startswith(_PREFIX)
    }


def make_pools(api: str, login: str, names: Iterable[str]) -> None:
    """Make the pools that are missing, of the type process; leave the others as they are."""
    with open_client(api, login) as client:
        ensure_pools(client, names)


def is_online(api: str, login: str, pool: str, worker: str, started: float) -> bool:
    """Return whether a worker has been heard of since `started`, in seconds since 1970.

    Prefect believes that one is online for minutes after it died: a word from an earlier process of
    that name is none from this one.
    """
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    since = datetime.datetime.fromtimestamp(started, datetime.UTC)
    try:
        with open_client(api, login) as client:
            workers = client.read_workers_for_work_pool(pool)
    except (httpx.HTTPError, PrefectHTTPStatusError):
        return False
    return any(
        entry.name == worker
        and entry.status == "ONLINE"
        and entry.last_heartbeat_time is not None
        and entry.last_heartbeat_time >= since
        for entry in workers
    )


@contextmanager
def paused_pool(api: str, login: str, name: str) -> Iterator[None]:
    """Let a pool give out nothing in the body; one that somebody paused before stays paused.

    Raises `EnvironmentLacking` for a server that doesn't answer.
    """
    from prefect.client.schemas.actions import WorkPoolUpdate

    remedy = "'handoff down --now' asks no server"

    def pause(is_paused: bool) -> None:
        with connected_client(api, login, "to pause a pool", "a pool", remedy) as client:
            client.update_work_pool(name, WorkPoolUpdate(is_paused=is_paused))

    with connected_client(api, login, "a pool", "a pool", remedy) as client:
        was_paused = client.read_work_pool(name).is_paused
    pause(True)
    try:
        yield
    finally:
        if not was_paused:
            pause(False)
