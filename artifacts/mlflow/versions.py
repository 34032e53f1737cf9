"""The versions of one model in MLflow that stand for releases: found by their tags, made once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from handoff.artifacts.digest import Digest
from handoff.artifacts.mlflow.description import (
    RunAddress,
    describe_version,
    number_note,
    retired_note,
)
from handoff.artifacts.mlflow.logged_release import LoggedRelease
from handoff.artifacts.mlflow.session import Session
from handoff.artifacts.mlflow.tags import (
    MANIFEST_TAG,
    RELEASE_TAG,
    REPORT_TAG,
    RETIRED,
    TAG,
    VERSION_TAG,
    version_tags,
)
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.statement import Claim

REPORTS = ("report.html", "report.md")
_ABOUT = (
    "Verified packages of this model. Each version mirrors one of the release ledger in the object "
    "store, which is the truth: `handoff list`, `handoff show`, `handoff pull`."
)


@dataclass(frozen=True)
class Listing:
    """A release as MLflow lists it.

    `version` is MLflow's own number, `report` the address of the report's file, `manifest` and
    `release` the digests of the record and of the signed statement.
    """

    version: int
    run_id: str
    report: str
    manifest: Digest
    release: Digest


@dataclass(frozen=True)
class NewVersion:
    """What a version says: the release, the names of its evidence files.

    `training` is the run of the same MLflow that trained the model, and `flow_run` the page or the
    id of the Prefect run that released it, where they are known.
    """

    claim: Claim
    manifest: Manifest
    release: Digest
    evidence: tuple[str, ...]
    training: RunAddress | None
    flow_run: str = ""

    @property
    def report(self) -> str:
        """The report's file name; '' where there is none."""
        return next((name for name in REPORTS if name in self.evidence), "")

    def describe(self, run: RunAddress) -> str:
        """Return the description, whose links lead to `run`."""
        return describe_version(
            self.manifest,
            self.claim,
            self.release,
            run,
            report=self.report,
            training=self.training,
            flow_run=self.flow_run,
        )

    def tags(self, logged: LoggedRelease) -> dict[str, str]:
        """Return the tags of the version that is made of an upload."""
        report = f"{logged.source}/{self.report}"
        tags = version_tags(self.manifest, self.claim, self.release, report)
        if self.training:
            tags[f"{TAG}training_run_id"] = self.training.run
        return tags


class ListedVersions:
    """The versions of a model that Handoff listed."""

    def __init__(self, session: Session, model: str) -> None:
        """Ask by way of `session`."""
        self._session = session
        self._model = model

    def by_number(self, releases: Mapping[int, Digest] | None = None) -> dict[int, Listing]:
        """Return the listings by the releases' own versions, the older one where there are two.

        With `releases`, the signed statements of versions, only those that are of these: an MLflow
        that two stores share may list two releases of one name and number.
        """
        listings: dict[int, Listing] = {}
        for version in self._search():
            number, listing = _parse_number(version), _parse_listing(version)
            if number is None:
                continue
            if releases is None or releases.get(number) == listing.release:
                listings.setdefault(number, listing)
        return listings

    def find(self, release: Digest) -> Listing | None:
        """Return the listing of a release, or None."""
        same = (one for one in self._search() if one.tags[RELEASE_TAG] == str(release))
        return next(map(_parse_listing, same), None)

    def make(self, new: NewVersion, logged: LoggedRelease) -> Listing:
        """Make the version of an upload unless it is there, and return what is listed.

        Where two registrars made one each, the later one takes its own away.
        """
        session, client = self._session, self._session.client
        text = new.describe(RunAddress(logged.experiment, logged.run))

        def find_or_make() -> Listing:
            return self.find(new.release) or _parse_listing(
                client.create_model_version(
                    self._model,
                    source=logged.source,
                    run_id=logged.run,
                    model_id=logged.model,
                    tags=new.tags(logged),
                    description=text,
                )
            )

        session.create_once(client.create_registered_model, self._model, None, _ABOUT)
        created = session.call(find_or_make)
        first = self.find(new.release) or created
        if first.version < created.version:
            session.delete_once(client.delete_model_version, self._model, str(created.version))
        elif note := number_note(new.claim.version, created.version):
            number = str(created.version)
            session.call(client.update_model_version, self._model, number, note + text)
        return first

    def retire(self, retired: Collection[int], release_of: Callable[[int], Digest]) -> None:
        """Say of these releases' versions that they were retired, where that isn't said yet.

        `release_of` gives a release's signed statement, and is asked about those alone.
        """
        session, client = self._session, self._session.client
        for version in self._search():
            number = _parse_number(version)
            if number not in retired or version.tags.get("verdict") == RETIRED:
                continue
            if number is not None and release_of(number) == _parse_listing(version).release:
                description = retired_note(self._model, number) + (version.description or "")
                at = self._model, str(version.version)
                session.call(client.update_model_version, *at, description)
                session.call(client.set_model_version_tag, *at, "verdict", RETIRED)

    def _search(self) -> list[Any]:
        """Return what Handoff has listed, oldest first."""
        if self._session.is_empty:
            return []
        search = self._session.client.search_model_versions
        versions = self._session.pages(search, filter_string=f"name = '{self._model}'")
        listed = (one for one in versions if {RELEASE_TAG, MANIFEST_TAG} <= set(one.tags))
        return sorted(listed, key=lambda one: int(one.version))


def _parse_number(version: Any) -> int | None:  # noqa: ANN401 - MLflow's own entity
    """Return the release's own version that a listing is of; None where it says none."""
    number = version.tags.get(VERSION_TAG, "")
    return int(number) if re.fullmatch(r"[0-9]{1,9}", number) else None


def _parse_listing(version: Any) -> Listing:  # noqa: ANN401 - MLflow's own entity
    return Listing(
        version=int(version.version),
        run_id=version.run_id or "",
        report=version.tags.get(REPORT_TAG, ""),
        manifest=Digest(version.tags[MANIFEST_TAG]),
        release=Digest(version.tags[RELEASE_TAG]),
    )
