"""The model registry, over MLflow: one model version per release, found by name, alias or number.

MLflow is the catalogue. What a version is, is said by its manifest, whose digest is a tag of the
version; the packages that are served come from the object store under their digests.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.catalogue import TAG
from artifacts.delivery import require_model_name
from artifacts.digest import Digest
from artifacts.errors import HandoffError, RegistryFailed, UsageProblem

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class VersionEntry:
    """One registered version, as the catalogue has it."""

    name: str
    version: int
    aliases: tuple[str, ...]
    manifest: Digest
    verdict: str
    targets: tuple[str, ...]
    created: str
    report: str
    run_id: str


class Registry:
    """Registered models in the MLflow that `tracking_uri` names (a server, or SQLite)."""

    def __init__(self, tracking_uri: str, artifact_root: str) -> None:
        """Keep artifacts below `artifact_root`; where it is empty, the server says where."""
        self.tracking_uri = tracking_uri
        self.artifact_root = artifact_root
        self._made: MlflowClient | None = None

    def find_fingerprint(self, name: str, fingerprint: Digest) -> VersionEntry | None:
        """Return the newest version of `name` made from what `fingerprint` stands for, or None."""
        if self._is_empty():
            return None
        with self._told("be searched"):
            version = self._find_tagged(name, "fingerprint", fingerprint)
            return None if version is None else self._entry(name, version)

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Move `alias` to `version`."""
        with self._told("move an alias"):
            self._client.set_registered_model_alias(name, alias, str(version))

    def find(self, name: str, reference: str | int | None) -> VersionEntry:
        """Return the version that an alias or a number names; the newest one for None."""
        try:
            require_model_name(name)
        except ValueError as error:
            raise UsageProblem(
                "that is no model's name", expected="a name as 'handoff list' shows it",
                got=name[:80], remedy=str(error).capitalize(),
            ) from error  # fmt: skip
        if self._is_empty():
            raise self._unknown(name, reference)
        from mlflow.exceptions import MlflowException

        with self._told("find a version"):
            try:
                if isinstance(reference, str):
                    found = self._client.get_model_version_by_alias(name, reference)
                    return self._entry(name, int(found.version))
                return self._entry(name, reference or self._newest(name))
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise self._unknown(name, reference) from error
                raise

    def models(self) -> tuple[VersionEntry, ...]:
        """Return the newest version of every model, by name."""
        if self._is_empty():
            return ()
        with self._told("be listed"):
            names = sorted(
                model.name for model in self._pages(self._client.search_registered_models)
            )
            newest = [(name, self._newest(name)) for name in names]
            return tuple(self._entry(name, version) for name, version in newest if version)

    @property
    def _client(self) -> MlflowClient:
        if self._made is None:
            _quieten()
            from mlflow import MlflowClient

            self._made = MlflowClient(self.tracking_uri, registry_uri=self.tracking_uri)
        return self._made

    def _is_empty(self) -> bool:
        """Tell whether the embedded database isn't there yet: reading should not create it."""
        path = self.tracking_uri.removeprefix("sqlite:///")
        return path != self.tracking_uri and not Path(path).exists()

    @staticmethod
    def _pages(search: Any, **query: Any) -> Iterator[Any]:  # noqa: ANN401 - MLflow's own entities
        token = None
        while True:
            page = search(page_token=token, **query)
            yield from page
            token = page.token
            if not token:
                return

    def _newest(self, name: str) -> int:
        self._client.get_registered_model(name)
        query = {"filter_string": f"name = '{name}'"}
        versions = self._pages(self._client.search_model_versions, **query)
        return max((int(found.version) for found in versions), default=0)

    def _find_tagged(self, name: str, tag: str, value: Digest) -> int | None:
        query = f"name = '{name}' and tags.`{TAG}{tag}` = '{value}'"
        found = self._pages(self._client.search_model_versions, filter_string=query)
        return max((int(version.version) for version in found), default=None)

    def _entry(self, name: str, version: int) -> VersionEntry:
        found = self._client.get_model_version(name, str(version))
        tags = {key.removeprefix(TAG): value for key, value in found.tags.items()}
        if "manifest" not in tags:
            raise RegistryFailed(
                f"{name} version {version} was not registered by Handoff",
                expected=f"a version with the tag {TAG}manifest", got="none",
                remedy="Name another version, or release the model",
            )  # fmt: skip
        return VersionEntry(
            name=name,
            version=version,
            aliases=tuple(sorted(found.aliases)),
            manifest=Digest(tags["manifest"]),
            verdict=tags.get("verdict", ""),
            targets=tuple(tags.get("targets", "").split()),
            created=tags.get("created", ""),
            report=tags.get("report", ""),
            run_id=found.run_id or "",
        )

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        try:
            yield
        except HandoffError:
            raise
        except Exception as error:
            # MLflow lets through what its database, its HTTP client and boto3 raise.
            kind = type(error).__name__
            told = str(error) if isinstance(error, MlflowException) else kind
            raise RegistryFailed(
                f"the registry could not {what}",
                expected=f"MLflow at {_without_secret(self.tracking_uri)}, in working order",
                got=(told.strip().splitlines() or [kind])[0][:300],
                remedy="Look at MLFLOW_TRACKING_URI, and whether the server and its store are up; "
                "then run the same command again",
            ) from error

    def _unknown(self, name: str, reference: str | int | None) -> RegistryFailed:
        known = ", ".join(entry.name for entry in self.models()) or "nothing"
        wanted = name if reference is None else f"{name}@{reference}"
        return RegistryFailed(
            f"{wanted} is not registered", expected="a registered model, and an alias or version "
            "of it", got=f"{known} registered", remedy="See 'handoff list' and 'handoff show NAME'",
        )  # fmt: skip


def _quieten() -> None:
    """Keep MLflow from sending telemetry, from logging migrations, and from retrying for ever."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # MLflow reads its settings from the environment only, and it sets defaults there itself.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Its own default of 7 tries with doubling pauses waits for four minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")


def _without_secret(uri: str) -> str:
    head, separator, tail = uri.partition("://")
    return f"{head}{separator}{tail.rpartition('@')[2]}"
