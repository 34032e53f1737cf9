"""What was left lying about: temporary files, unfinished uploads, runs, files and processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil

from handoff.artifacts.host import Stores
from handoff.artifacts.mlflow.registry import RELEASES
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.s3 import S3Store
from handoff.artifacts.stores.store import open_store


def see_litter(
    stores: Stores, *, home: Path | None = None, scratch: Iterable[Path] = ()
) -> list[str]:
    """Return what lies in the store, in MLflow, in `home` and in the folders `scratch`.

    Those were empty before. What the garbage collector is for isn't counted: `for_collector`.
    """
    found = list(_see_store(stores))
    found += _see_catalogue(stores)
    if home is not None:
        found += _see_home(home)
    for folder in scratch:
        # Torch's own cache, which it makes at import and shares between all its processes.
        paths = [p for p in sorted(folder.iterdir()) if not p.name.startswith("torchinductor_")]
        found += [f"{path} was left" for path in paths]
    return found


def for_collector(stores: Stores) -> int:
    """Return how many uploads in parts and keys of self-tests are left, which a collection removes.

    Whether somebody is still at work on them can't be known until they are old.
    """
    store = open_store(stores.objects)
    tests = len(list(store.keys("selftest/")))
    if not isinstance(store, S3Store):
        return tests
    return tests + len(store.bucket.unfinished_uploads(datetime.now(UTC) + timedelta(days=1)))


def see_processes(place: Path) -> list[str]:
    """Return the processes that were started for what lies below `place`, and still live."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if process.pid == os.getpid():
            continue
        try:
            texts = [*process.environ().values(), *process.cmdline()]
            is_ours = any(str(place) in text for text in texts) and process.status() != "zombie"
        except psutil.Error:
            continue
        if is_ours:
            found.append(f"process {process.pid} is left: {' '.join(process.cmdline())[:120]}")
    return found


def _see_store(stores: Stores) -> Iterator[str]:
    store = open_store(stores.objects)
    if isinstance(store, FolderStore):
        for path in store.root.rglob("*"):
            if path.is_file() and any(
                part.startswith(".") for part in path.relative_to(store.root).parts
            ):
                yield f"{path.relative_to(store.root)} is left in the store"


def _see_catalogue(stores: Stores) -> Iterator[str]:
    """Yield which folders of files MLflow keeps that belong to no run and no model."""
    root = Path(stores.artifact_root)
    if not stores.artifact_root or not root.is_dir():
        return
    from mlflow import MlflowClient

    client: Any = MlflowClient(stores.tracking_uri, registry_uri=stores.tracking_uri)
    experiment = client.get_experiment_by_name(RELEASES)
    known: set[Path] = set()
    if experiment:
        ids = [experiment.experiment_id]
        known |= {_local(run.info.artifact_uri) for run in client.search_runs(ids)}
        known |= {_local(one.artifact_location) for one in client.search_logged_models(ids)}
    for path in root.rglob("*"):
        if path.is_file() and not any(one in path.parents for one in known):
            yield f"{path.relative_to(root)} belongs to nothing that MLflow lists"
    for path in Path(urlsplit(stores.tracking_uri).path).parent.glob(".unfinished/*"):
        yield f"{path} is left of a database"


def _local(address: str) -> Path:
    return Path(unquote(urlsplit(address).path))


def _see_home(home: Path) -> Iterator[str]:
    builds = home / "builds"
    for path in sorted(builds.glob("[0-9][0-9]*")):
        if not (path / "refused").exists() and not _is_locked(path):
            yield f"the build {path.name} is left"
    patterns = ("builds/packages/*/.*", "builds/programs/.*", "builds/compiler/ready/.*")
    folders = ("ledgers", "keys/private", "keys/trusted")
    for pattern in (*patterns, *(f"{folder}/.*" for folder in folders)):
        for path in sorted(home.glob(pattern)):
            yield f"{path.relative_to(home)} is left"


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
