"""Everything that is wrong with a registry, in sentences.

`see_half` is what nobody may ever see, at any moment: something that is half there. `see_unsettled`
is what must not be left once a second run has ended: missing copies, a catalogue that says other
than the ledger. `tests.studies.outages.litter` looks for what was left lying about.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from handoff.artifacts.digest import digest_bytes, digest_file, digest_tree
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.host import Stores
from handoff.artifacts.mlflow.logged_release import listed_packages
from handoff.artifacts.mlflow.registry import RELEASES
from handoff.artifacts.mlflow.tags import RELEASE_TAG, VERSION_TAG
from handoff.artifacts.release.layout import DELIVERY_FILE, ENTRY_FILE, PARTS_FILE, SUMS_FILE
from handoff.artifacts.release.ledger import LedgerEntry, Pointer, open_entry
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest
from handoff.artifacts.release.package import check_release
from handoff.artifacts.release.releases import Releases, SignedRelease, open_releases
from handoff.artifacts.release.statement import RELEASE_FILE
from handoff.tasks.registry import pull
from handoff.tasks.registry.messages import PullJob
from tests.studies.outages.registries import MODEL

_LIMIT = 64 << 20


def see_half(stores: Stores, model: str = MODEL) -> list[str]:
    """Return what a reader could see that is not whole."""
    releases = open_releases(stores.objects, stores.trusted, None)
    try:
        entries = releases.entries(model)
    except HandoffError as error:
        return [f"the ledger can't be read: {error}"]
    found = list(_see_versions(releases, model, entries))
    found += _see_copies(releases, model, entries)
    if _has_catalogue(stores):
        found += _see_catalogue(stores, releases, model, entries)
    return found


def see_unsettled(stores: Stores, model: str = MODEL) -> list[str]:
    """Return what a second run has not made up for."""
    releases = open_releases(stores.objects, stores.trusted, None)
    entries = releases.entries(model)
    if not entries:
        return []
    found = list(_see_missing_copies(releases, model, entries))
    found += _see_unpullable(stores, releases, model, entries)
    if _has_catalogue(stores):
        found += _see_stale_catalogue(stores, model, entries[-1])
    return found


def see_other_numbers(stores: Stores, model: str = MODEL) -> list[str]:
    """Return the versions whose number in MLflow is another than the ledger's."""
    pairs = [(one.version, one.tags.get(VERSION_TAG)) for one in _read_versions(stores, model)]
    return [
        f"MLflow's version {theirs} is the ledger's {ours}"
        for theirs, ours in pairs
        if str(theirs) != ours
    ]


def kept_versions(entries: tuple[LedgerEntry, ...]) -> dict[int, Pointer]:
    """Return what each version that wasn't retired is, by the ledger."""
    retired = entries[-1].retired if entries else ()
    return {
        entry.version: Pointer(entry.version, entry.release, "release", entry.sequence)
        for entry in reversed(entries)
        if entry.action == "release" and entry.version not in retired
    }


def _see_versions(
    releases: Releases, model: str, entries: tuple[LedgerEntry, ...]
) -> Iterator[str]:
    kept = kept_versions(entries)
    for version, pointer in kept.items():
        try:
            yield from _see_release(releases, releases.read(model, pointer))
        except HandoffError as error:
            yield f"version {version} can't be read: {error}"
    for alias, target in (entries[-1].aliases if entries else {}).items():
        if target.version not in kept:
            yield f"{alias} stands for version {target.version}, which isn't there"


def _see_release(releases: Releases, release: SignedRelease) -> Iterator[str]:
    version = release.claim.version
    parts = releases.parts(release.claim)
    for path, digest in release.claim.files.items():
        if path == MANIFEST_FILE:
            continue
        data = b"".join(
            releases.objects.read_bytes(part.digest, _LIMIT) for part in parts.get(path, ())
        )
        if digest_bytes(data) != digest:
            yield f"the parts of {path} of version {version} are another file"
    if release.claim.delivery is not None:
        listed = releases.delivery_parts(release.claim)
        files = {
            name: digest_bytes(b"".join(releases.objects.read_bytes(p.digest, _LIMIT) for p in own))
            for name, own in listed.items()
        }
        if digest_tree(files) != release.manifest.delivery:
            yield f"the parts of version {version}'s delivery are another delivery"
    for name, digest in release.claim.evidence.items():
        if not releases.objects.read_bytes(digest, _LIMIT):
            yield f"{name} of version {version} is empty"


def _see_copies(releases: Releases, model: str, entries: tuple[LedgerEntry, ...]) -> Iterator[str]:
    kept = kept_versions(entries)
    newest = entries[-1].newest if entries else 0
    for name in releases.store.names(f"models/{model}/versions/"):
        if int(name) > newest:
            yield f"versions/{name} is shown, which the ledger doesn't have"
        elif int(name) in kept:
            yield from _see_copy(releases, model, kept[int(name)], must_be_complete=False)
    known = {digest_bytes(_envelope(releases, model, e.sequence)) for e in entries}
    for stored in releases.store.keys(f"models/{model}/aliases/"):
        data = releases.store.read(stored.key, _LIMIT) or b""
        if digest_bytes(data) not in known:
            yield f"{stored.key} is no entry of the ledger"


def _see_copy(
    releases: Releases, model: str, pointer: Pointer, *, must_be_complete: bool
) -> Iterator[str]:
    """Yield which files of `versions/N` are wrong, and with `must_be_complete` which are missing.

    Without it they may be missing, as long as the last one, which says that all are there, is.
    """
    release = releases.read(model, pointer)
    folder = f"models/{model}/versions/{pointer.version}"
    sums = "".join(f"{d.hex}  {path}\n" for path, d in sorted(release.claim.files.items()))
    expected = {
        MANIFEST_FILE: release.manifest.to_bytes(),
        RELEASE_FILE: release.envelope,
        SUMS_FILE: sums.encode(),
        PARTS_FILE: releases.objects.read_bytes(release.claim.parts, _LIMIT),
        ENTRY_FILE: _envelope(releases, model, pointer.entry),
    }
    if release.claim.delivery is not None:
        expected[DELIVERY_FILE] = releases.objects.read_bytes(release.claim.delivery, _LIMIT)
    copies = {name: releases.store.read(f"{folder}/{name}", _LIMIT) for name in expected}
    is_whole = must_be_complete or copies[ENTRY_FILE] is not None
    for name, data in copies.items():
        if data is None and is_whole:
            yield f"{folder}/{name} is missing"
        elif data is not None and data != expected[name]:
            yield f"{folder}/{name} is not what was signed"


def _see_missing_copies(
    releases: Releases, model: str, entries: tuple[LedgerEntry, ...]
) -> Iterator[str]:
    kept = kept_versions(entries)
    for pointer in kept.values():
        yield from _see_copy(releases, model, pointer, must_be_complete=True)
        made = releases.release_entry(model, pointer.version)
        hint = releases.store.read(f"models/{model}/fingerprints/{made.fingerprint.hex}", 32)
        same = [v for v in kept if releases.release_entry(model, v).fingerprint == made.fingerprint]
        if hint is None or int(hint) not in same:
            yield f"version {pointer.version} isn't found by what it was made from"
    for alias, moved in entries[-1].aliases.items():
        data = releases.store.read(f"models/{model}/aliases/{alias}.json", _LIMIT)
        if data is None or open_entry(data, releases.trust, model).sequence != moved.entry:
            yield f"aliases/{alias}.json is not the entry that moved it"


def _see_unpullable(
    stores: Stores, releases: Releases, model: str, entries: tuple[LedgerEntry, ...]
) -> Iterator[str]:
    for version in kept_versions(entries):
        with tempfile.TemporaryDirectory() as scratch:
            to = Path(scratch, "pulled")
            try:
                job = PullJob(
                    model, version, to, "auto", _without_memory(stores), torch_version=None
                )
                pull.run(job)
                checked = check_release(to, None, releases.trust)
            except HandoffError as error:
                yield f"version {version} can't be pulled: {error}"
                continue
            if checked.claim.version != version:
                yield f"version {checked.claim.version} is pulled for version {version}"


def _without_memory(stores: Stores) -> Stores:
    return replace(stores, seen=None)


def _has_catalogue(stores: Stores) -> bool:
    file = stores.tracking_uri.removeprefix("sqlite:///")
    return file == stores.tracking_uri or Path(file).exists()


def _client(stores: Stores) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(stores.tracking_uri, registry_uri=stores.tracking_uri)


def _read_versions(stores: Stores, model: str) -> list[Any]:
    return list(_client(stores).search_model_versions(f"name = '{model}'", max_results=1000))


def _see_catalogue(
    stores: Stores, releases: Releases, model: str, entries: tuple[LedgerEntry, ...]
) -> Iterator[str]:
    kept = kept_versions(entries)
    newest = entries[-1].newest if entries else 0
    models = _read_models(_client(stores))
    for listed in _read_versions(stores, model):
        number = listed.tags.get(VERSION_TAG, "")
        if not re.fullmatch(r"[0-9]+", number) or int(number) > newest:
            yield f"MLflow lists version {number!r}, which the ledger doesn't have"
            continue
        if int(number) not in kept:
            continue
        if listed.tags.get(RELEASE_TAG) != str(kept[int(number)].release):
            yield f"MLflow's version {number} is another release"
        logged = next((m for m in models if m.artifact_location == listed.source), None)
        if logged is None:
            yield f"MLflow's version {number} is of no model that is logged"
            continue
        if (str(listed.status), str(logged.status)) != ("READY", "READY"):
            yield f"MLflow's version {number} is {listed.status}, its model {logged.status}"
        manifest = releases.read(model, kept[int(number)]).manifest
        yield from _see_artifacts(logged.artifact_location, manifest, stores, number)


def _see_artifacts(location: str, manifest: Manifest, stores: Stores, number: str) -> Iterator[str]:
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(location, tracking_uri=stores.tracking_uri)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            repository.download_artifacts("", scratch)  # type: ignore[no-untyped-call]
        except (MlflowException, OSError) as error:
            yield f"the files of MLflow's version {number} can't be had: {error}"
            return
        for name in (MANIFEST_FILE, RELEASE_FILE, "MLmodel"):
            if not Path(scratch, name).is_file():
                yield f"MLflow's version {number} has no {name}"
        for file in (*manifest.files, *listed_packages(manifest)):
            path = Path(scratch, file.path)
            if not path.is_file() or digest_file(path) != file.digest:
                yield f"MLflow's version {number} has no {file.path}, or another one"


def _see_stale_catalogue(stores: Stores, model: str, head: LedgerEntry) -> Iterator[str]:
    client = _client(stores)
    listed = _read_versions(stores, model)
    numbers = sorted(int(one.tags.get(VERSION_TAG, "0")) for one in listed)
    known = sorted({*range(1, head.newest + 1)} - {*head.retired})
    if numbers != known:
        yield f"MLflow lists the versions {numbers}, the ledger has {known}"
    by_version = {int(one.version): int(one.tags.get(VERSION_TAG, "0")) for one in listed}
    if not listed:
        return
    aliases = {
        alias: by_version.get(int(version), 0)
        for alias, version in client.get_registered_model(model).aliases.items()
    }
    wanted = {alias: pointer.version for alias, pointer in head.aliases.items()}
    if aliases != wanted:
        yield f"MLflow's aliases are {aliases}, the ledger's {wanted}"
    yield from _see_unended(client)


def _read_models(client: Any) -> list[Any]:
    experiment = client.get_experiment_by_name(RELEASES)
    return list(client.search_logged_models([experiment.experiment_id])) if experiment else []


def _see_unended(client: Any) -> Iterator[str]:
    experiment = client.get_experiment_by_name(RELEASES)
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    for run in runs:
        if run.info.status != "FINISHED":
            yield f"MLflow's run {run.info.run_id} is {run.info.status}"
    for logged in _read_models(client):
        if str(logged.status) != "READY":
            yield f"MLflow's model {logged.model_id} is {logged.status}"


def _envelope(releases: Releases, model: str, sequence: int) -> bytes:
    return releases.store.read(f"models/{model}/ledger/{sequence:08}.json", _LIMIT) or b""
