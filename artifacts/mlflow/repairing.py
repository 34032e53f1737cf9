"""Files that MLflow shows and doesn't have any more, as where its artifacts didn't move along.

MLflow lists versions by its database, which knows nothing of the files' place having changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from handoff.artifacts.errors import RegistryFailed
from handoff.artifacts.mlflow.logged_release import LoggedRelease
from handoff.artifacts.mlflow.mlmodel import MLMODEL_FILE, listed_packages
from handoff.artifacts.mlflow.session import Session
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest
from handoff.artifacts.release.statement import RELEASE_FILE


def lacking_files(
    session: Session, logged: LoggedRelease, manifest: Manifest, evidence: Collection[str]
) -> tuple[str, ...]:
    """Return the paths of what an upload consists of and MLflow hasn't whole, sorted.

    Of the record, its signature, `evidence` and MLmodel only their being there counts.
    """
    client = session.client
    sizes: dict[str, int | None] = dict.fromkeys(
        (MANIFEST_FILE, RELEASE_FILE, MLMODEL_FILE, *evidence)
    )
    sizes |= {f.path: f.size_bytes for f in (*manifest.files, *listed_packages(manifest))}
    held = dict(_files(session, client.list_logged_model_artifacts, logged.model))
    lacking = {
        path for path, size in sizes.items()
        if path not in held or (size is not None and held[path] not in (size, None))
    }  # fmt: skip
    if evidence:
        of_run = dict(_files(session, client.list_artifacts, logged.run))
        lacking |= {*evidence} - of_run.keys()
    return tuple(sorted(lacking))


def _files(
    session: Session, listing: Callable[..., Any], of: str, below: str | None = None
) -> Iterator[tuple[str, int | None]]:
    """Give path and size of each file, a folder after the other."""
    for found in session.call(listing, of, below):
        if found.is_dir:
            yield from _files(session, listing, of, found.path)
        else:
            yield found.path, found.file_size


def require_own_place(session: Session, experiment: str, artifact_root: str) -> None:
    """Raise `RegistryFailed` where an experiment's files lie elsewhere than MLflow's are kept now.

    MLflow can't be told another place for an experiment that it has.
    """
    if not artifact_root:
        return
    place = str(session.call(session.client.get_experiment, experiment).artifact_location)
    if place.removeprefix("file://").rstrip("/").startswith(artifact_root.rstrip("/")):
        return
    raise RegistryFailed(
        "files that MLflow shows are gone, from a place where they aren't kept any more",
        expected=f"MLflow's artifacts below {artifact_root}", got=place[:200],
        remedy="Bring that place back; or move MLflow's database (mlflow.db in the home's folder "
        "mlflow) aside and run 'handoff sync': a new one shows what the ledgers say",
    )  # fmt: skip
