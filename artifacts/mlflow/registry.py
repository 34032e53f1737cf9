"""The catalogue: what the ledger has released, mirrored into MLflow, where people look and search.

The store's ledger is the truth. A release becomes a run, a logged model and a model version with
the tag `handoff.version`; MLflow's aliases are set to what the ledger says. A registration that
was killed at any moment shows nothing half, and the next one ends it.

MLflow lists versions by its database, which knows nothing of the files' place having changed: what
it shows and doesn't have any more, as where its artifacts didn't move along, is put back.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.delivery.contract import require_alias_name, require_model_name
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import RegistryFailed
from handoff.artifacts.mlflow.description import RunAddress, parse_run_id
from handoff.artifacts.mlflow.logged_release import (
    MLMODEL_FILE,
    LoggedRelease,
    ReleaseLog,
    Upload,
    listed_packages,
)
from handoff.artifacts.mlflow.session import Session, open_session
from handoff.artifacts.mlflow.standalone_runs import (
    Note,
    Refusal,
    StandaloneRun,
    log_standalone_run,
    run_of_night,
    run_of_refusal,
    run_of_table,
)
from handoff.artifacts.mlflow.tags import run_tags
from handoff.artifacts.mlflow.versions import REPORTS, ListedVersions, Listing, NewVersion
from handoff.artifacts.night import Night
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest
from handoff.artifacts.release.statement import RELEASE_FILE, Claim
from handoff.artifacts.waiting import Backoff


def find_missing_files(
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
    listed = dict(_list_files(session, client.list_logged_model_artifacts, logged.model))
    missing = {
        path for path, size in sizes.items()
        if path not in listed or (size is not None and listed[path] not in (size, None))
    }  # fmt: skip
    if evidence:
        run_files = dict(_list_files(session, client.list_artifacts, logged.run))
        missing |= {*evidence} - run_files.keys()
    return tuple(sorted(missing))


def _list_files(
    session: Session, list_artifacts: Callable[..., Any], owner: str, below: str | None = None
) -> Iterator[tuple[str, int | None]]:
    """Give path and size of each file, a folder after the other."""
    for entry in session.call(list_artifacts, owner, below):
        if entry.is_dir:
            yield from _list_files(session, list_artifacts, owner, entry.path)
        else:
            yield entry.path, entry.file_size


def require_artifact_root(session: Session, experiment: str, artifact_root: str) -> None:
    """Raise `RegistryFailed` where an experiment's files lie elsewhere than MLflow's are kept now.

    MLflow takes no other place for an experiment that it has.
    """
    if not artifact_root:
        return
    location = str(session.call(session.client.get_experiment, experiment).artifact_location)
    if location.removeprefix("file://").rstrip("/").startswith(artifact_root.rstrip("/")):
        return
    raise RegistryFailed(
        "files that MLflow shows are gone, from a place where they aren't kept any more",
        expected=f"MLflow's artifacts below {artifact_root}", got=location[:200],
        remedy="Bring that place back; or move MLflow's database (mlflow.db in the home's folder "
        "mlflow) aside and run 'handoff sync': a new one shows what the ledgers say",
    )  # fmt: skip


PATIENCE_S = 45.0
# How long a version waits for those before it, while none of them appears.
ORDER_WAIT_S = 30.0

# The experiments that runs are logged in.
RELEASES = "handoff"
NIGHTS = "handoff nights"
CONFORMANCE = "handoff conformance"
# MLflow's pages take an experiment for one with language models otherwise.
_TAGS = {"mlflow.experimentKind": "custom_model_development"}


class EarlierVersionsMissing(RegistryFailed):
    """Versions before this one are not listed, and nobody seems to be at work on them."""

    versions: tuple[int, ...] = ()


@dataclass(frozen=True)
class AliasUpdate:
    """What happened to MLflow's aliases.

    `unlisted` are those of the ledger whose version isn't listed, `put_back` says in sentences
    which were set, and `foreign` are those that no ledger has.
    """

    unlisted: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


class Catalogue:
    """Registered models in the MLflow that `tracking_uri` names (a server, or SQLite).

    Every method raises `RegistryFailed` when MLflow doesn't do what it is asked to; what may
    succeed a moment later is tried again, for `patience_s` seconds in all.
    """

    def __init__(
        self,
        tracking_uri: str,
        artifact_root: str,
        *,
        patience_s: float = PATIENCE_S,
        order_wait_s: float = ORDER_WAIT_S,
    ) -> None:
        """Keep artifacts below `artifact_root`; where it is empty, the server says where."""
        self.tracking_uri = tracking_uri
        self.artifact_root = artifact_root
        self._patience_s = patience_s
        self._order_wait_s = order_wait_s

    def list_versions(self, model: str) -> dict[int, Listing]:
        """Return what is listed of a model, by the releases' own version numbers.

        Of two MLflow versions for one release the older one counts. Raises `ValueError` for what
        is no model's name.
        """
        require_model_name(model)
        with open_session(self.tracking_uri, self._patience_s, "list the versions") as session:
            return ListedVersions(session, model).by_number()

    def missing_before(
        self,
        model: str,
        version: int,
        known: Collection[int],
        releases: Mapping[int, Digest] | None = None,
    ) -> tuple[int, ...]:
        """Return which of the `known` versions before `version` are not listed, in order.

        `releases` are the signed statements of versions: what another store has released by the
        same name and number is then not taken for them.
        """
        with open_session(self.tracking_uri, self._patience_s, "list the versions") as session:
            listed = ListedVersions(session, model).by_number(releases)
        return _find_missing(listed, version, known)

    def list_release(
        self,
        claim: Claim,
        manifest: Manifest,
        folder: Path,
        *,
        release: Digest,
        evidence: Mapping[str, bytes],
        flow_run: str = "",
        known: Collection[int] = (),
        releases: Mapping[int, Digest] | None = None,
    ) -> Listing:
        """List a release whose files are in `folder`, or find it listed; return its listing.

        `release` is the digest of the signed statement, `evidence` the report and its pictures by
        file name; `flow_run` the page or the id of the run that released it. Versions are made in
        the ledger's order: those of `known` that are before this one are waited for while they
        appear, and then `EarlierVersionsMissing` is raised with the rest, for the caller to list
        first. What was uploaded until then is found again.
        """
        require_model_name(claim.model)
        with open_session(self.tracking_uri, self._patience_s, "list a release") as session:
            versions = ListedVersions(session, claim.model)
            found = versions.find(release)
            if found:
                return found
            log = ReleaseLog(session, open_experiment(session, RELEASES, self.artifact_root))
            training = _find_training_run(session, manifest)
            new = NewVersion(claim, manifest, release, tuple(evidence), training, flow_run)
            logged = log.find(release)
            if logged is None:
                log.sweep(release, keep_run="")
                logged = log.upload(
                    Upload(
                        manifest,
                        claim.version,
                        folder,
                        release,
                        evidence,
                        run_tags(manifest, claim, release),
                        new.describe,
                        _find_outputs(session, training),
                    )
                )
            self._await_earlier(versions, claim, known, releases)
            listing = versions.make(new, logged)
            if listing.run_id == logged.run:
                log.conclude(logged, claim.model, listing.version)
            log.sweep(release, keep_run=listing.run_id)
            return listing

    def missing_files(
        self, manifest: Manifest, release: Digest, evidence: Collection[str]
    ) -> tuple[str, ...]:
        """Return the files of a listed release that MLflow shows and doesn't have any more.

        `evidence` are the names of the report and its pictures.
        """
        with open_session(self.tracking_uri, self._patience_s, "list a version's files") as session:
            log = ReleaseLog(session, open_experiment(session, RELEASES, self.artifact_root))
            logged = log.find(release)
            return find_missing_files(session, logged, manifest, evidence) if logged else ()

    def upload_again(
        self,
        claim: Claim,
        manifest: Manifest,
        folder: Path,
        *,
        release: Digest,
        evidence: Mapping[str, bytes],
    ) -> None:
        """Upload the files of a listed release again, which are in `folder`, as `list_release` did.

        Raises `RegistryFailed` where an embedded MLflow keeps them in another place by now.
        """
        with open_session(self.tracking_uri, self._patience_s, "keep a version's files") as session:
            log = ReleaseLog(session, open_experiment(session, RELEASES, self.artifact_root))
            require_artifact_root(session, log.experiment, self.artifact_root)
            if logged := log.find(release):
                upload = Upload(
                    manifest, claim.version, folder, release, evidence, {}, lambda _: ""
                )  # fmt: skip
                log.upload_again(logged, upload)

    def set_aliases(
        self,
        model: str,
        aliases: Mapping[str, int],
        releases: Mapping[int, Digest] | None = None,
    ) -> AliasUpdate:
        """Set MLflow's aliases as the ledger has them, by the releases' versions.

        `releases` are the signed statements of versions, as in `missing_before`. Those whose
        version is not listed, and those that only MLflow has, are left as they are. MLflow knows no
        compare-and-set: a caller reads the ledger again afterwards, and points again where it has
        moved on. Raises `ValueError` for what is no name.
        """
        require_model_name(model)
        for alias in aliases:
            require_alias_name(alias)
        with open_session(self.tracking_uri, self._patience_s, "move an alias") as session:
            listed = ListedVersions(session, model).by_number(releases)
            unlisted = tuple(sorted(a for a, version in aliases.items() if version not in listed))
            if len(unlisted) == len(aliases):
                return AliasUpdate(unlisted)
            client = session.client
            listed_aliases = session.call(client.get_registered_model, model).aliases
            versions = {str(listing.version): version for version, listing in listed.items()}
            put_back = []
            for alias in sorted({*aliases} - {*unlisted}):
                expected = str(listed[aliases[alias]].version)
                current = str(listed_aliases.get(alias, ""))
                if current != expected:
                    session.call(client.set_registered_model_alias, model, alias, expected)
                    previous = versions.get(current, current) or "nothing"
                    put_back.append(
                        f"@{alias} pointed to {previous}, and points to {aliases[alias]}"
                    )
            return AliasUpdate(
                unlisted, tuple(put_back), tuple(sorted({*listed_aliases} - {*aliases}))
            )

    def retire(
        self, model: str, retired: Collection[int], release_of: Callable[[int], Digest]
    ) -> None:
        """Say of the releases' versions that were retired that they were.

        `release_of` gives the signed statement of one, and is asked where that isn't said yet.
        """
        with open_session(self.tracking_uri, self._patience_s, "say what was retired") as session:
            ListedVersions(session, model).retire(retired, release_of)

    def log_night(self, night: Night, note: Note, folder: Path) -> RunAddress:
        """Show a night as a run with the files below `folder`; return where."""
        return self._log_run(NIGHTS, run_of_night(night, note), folder, "show the night")

    def log_refusal(
        self, refusal: Refusal, manifest: Manifest | None, evidence: Mapping[str, bytes]
    ) -> RunAddress:
        """Show a refused release as a run beside those of the releases; return where.

        `manifest` and `evidence` are what was measured until then, and its report and pictures.
        """
        report = next((name for name in REPORTS if name in evidence), "")
        with open_session(self.tracking_uri, self._patience_s, "show the refusal") as session:
            experiment_id = open_experiment(session, RELEASES, self.artifact_root)
            spec = run_of_refusal(refusal, manifest, report)
            with tempfile.TemporaryDirectory() as name:
                for file, data in evidence.items():
                    Path(name, file).write_bytes(data)
                return RunAddress(
                    experiment_id, log_standalone_run(session, experiment_id, spec, Path(name))
                )

    def log_conformance(self, table: Conformance, note: str, folder: Path) -> RunAddress:
        """Show a toolchain's table as a run with the files below `folder`; return where."""
        return self._log_run(CONFORMANCE, run_of_table(table, note), folder, "show the table")

    def _log_run(self, experiment: str, run: StandaloneRun, folder: Path, what: str) -> RunAddress:
        with open_session(self.tracking_uri, self._patience_s, what) as session:
            experiment_id = open_experiment(session, experiment, self.artifact_root)
            return RunAddress(
                experiment_id, log_standalone_run(session, experiment_id, run, folder)
            )

    def _await_earlier(
        self,
        versions: ListedVersions,
        claim: Claim,
        known: Collection[int],
        releases: Mapping[int, Digest] | None,
    ) -> None:
        fewest = len(known) + 1
        # Growing: many that wait together would keep the one before them from its work.
        pauses = Backoff(0.1, 2.0, growth=1.5, cut=0.0)
        deadline = time.monotonic() + self._order_wait_s
        while missing := _find_missing(versions.by_number(releases), claim.version, known):
            if len(missing) < fewest:
                fewest, deadline = len(missing), time.monotonic() + self._order_wait_s
            if time.monotonic() > deadline:
                break
            pauses.take()
        else:
            return
        error = EarlierVersionsMissing(
            f"{claim.model} version {claim.version} can't be listed in MLflow yet",
            expected="the versions before it, in the ledger's order",
            got=f"no version {', '.join(map(str, missing))}", remedy="List these first",
        )  # fmt: skip
        error.versions = missing
        raise error


def _find_missing(listed: Collection[int], version: int, known: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(one for one in known if one < version and one not in listed))


def _find_training_run(session: Session, manifest: Manifest) -> RunAddress | None:
    """Return the training run that the lineage names, when this MLflow has it."""
    from mlflow.exceptions import MlflowException

    run_id = parse_run_id(manifest.lineage.training_run)
    if run_id is None:
        return None
    try:
        run = session.call(session.client.get_run, run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return RunAddress(run.info.experiment_id, run.info.run_id)


def _find_outputs(session: Session, training: RunAddress | None) -> tuple[str, ...]:
    """Return the logged models that the training run has made."""
    if training is None:
        return ()
    run = session.call(session.client.get_run, training.run)
    outputs = run.outputs.model_outputs if run.outputs else []
    return tuple(output.model_id for output in outputs)


def open_experiment(session: Session, name: str, artifact_root: str) -> str:
    """Return the experiment's id; make it first where it isn't there.

    Its artifacts are kept below `artifact_root`; where that is empty, the server says where.
    """
    client = session.client
    experiment = session.call(client.get_experiment_by_name, name)
    if experiment is None:
        session.create_once(client.create_experiment, name, artifact_root or None, _TAGS)
        experiment = session.call(client.get_experiment_by_name, name)
    assert experiment is not None
    return str(experiment.experiment_id)
