"""A ledger that somebody has changed, and a release that isn't what it says, are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.errors import (
    BlessingRefused,
    PackageRefused,
    RegistryFailed,
    StoreFailed,
)
from handoff.artifacts.release.layout import ledger_key, version_key
from handoff.artifacts.release.signing import make_key
from handoff.artifacts.stores.objects import object_key
from tests.tasks.registry.registering import SomeRegistry


def test_a_ledger_that_was_cut_is_noticed_where_it_was_seen_before(local: SomeRegistry) -> None:
    local.promote(local.release())
    local.promote(local.release("2026-11-22T00:00:00+00:00"))
    last = Path(local.stores.objects) / ledger_key("toy", 4)
    hidden = last.read_bytes()
    assert local.releases.find("toy", "production").version == 2
    last.unlink()
    with pytest.raises(PackageRefused, match="toy's ledger went back: expected entry 4"):
        local.releases.find("toy", "production")
    last.write_bytes(hidden)
    assert local.releases.find("toy", "production").version == 2


def rewrite(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def test_entries_that_were_swapped_removed_or_taken_from_another_model_are_refused(
    local: SomeRegistry,
) -> None:
    for day in (21, 22, 23):
        local.release(f"2026-11-{day}T00:00:00+00:00")
    local.release(model="other")
    store = Path(local.stores.objects)
    paths = [store / ledger_key("toy", number) for number in (1, 2, 3)]
    first, second, third = (path.read_bytes() for path in paths)
    rewrite(paths[1], first)
    with pytest.raises(PackageRefused, match="expected toy's entry 2, got toy's entry 1"):
        local.entries()
    rewrite(paths[1], (store / ledger_key("other", 1)).read_bytes())
    with pytest.raises(PackageRefused, match="expected toy's entry 2, got other's entry 1"):
        local.entries()
    paths[1].unlink()
    with pytest.raises(StoreFailed, match="entry 2 of toy's ledger is not in the store"):
        local.entries()
    rewrite(paths[1], second)
    envelope = json.loads(third)
    envelope["signatures"] = []
    rewrite(paths[2], json.dumps(envelope).encode())
    with pytest.raises(PackageRefused, match="a signature by a trusted key"):
        local.releases.find("toy", "candidate")


def test_a_version_whose_copies_name_another_one_is_read_by_the_ledger(local: SomeRegistry) -> None:
    local.release()
    local.release("2026-11-22T00:00:00+00:00")
    store = Path(local.stores.objects)
    other = (store / version_key("toy", 1, "ledger.dsse.json")).read_bytes()
    rewrite(store / version_key("toy", 2, "ledger.dsse.json"), other)
    found = local.releases.read("toy", local.releases.find("toy", 2))
    assert found.claim.version == 2


def test_what_an_unknown_key_has_signed_is_neither_read_nor_written(
    local: SomeRegistry, tmp_path: Path
) -> None:
    local.release()
    make_key(tmp_path / "theirs" / "key.pem", tmp_path / "theirs" / "key.pub")
    stranger = replace(
        local, key=replace(local.key, uri=str(tmp_path / "theirs" / "key.pem")),
    )  # fmt: skip
    with pytest.raises(PackageRefused, match="expected a signature by a trusted key"):
        stranger.release("2026-11-22T00:00:00+00:00")
    assert len(local.entries()) == 1
    reader = replace(local, stores=replace(local.stores, trusted=(str(tmp_path / "theirs"),)))
    with pytest.raises(PackageRefused, match="handoff keys trust"):
        reader.releases.find("toy", "candidate")
    nobody = replace(local, stores=replace(local.stores, trusted=()))
    with pytest.raises(PackageRefused, match="none that is trusted here"):
        nobody.pull(tmp_path / "pulled")


def test_a_release_that_was_signed_for_another_version_is_refused(local: SomeRegistry) -> None:
    local.release()
    local.release("2026-11-22T00:00:00+00:00")
    first, second = (local.releases.find("toy", number) for number in (1, 2))
    with pytest.raises(PackageRefused, match="expected toy version 2, got toy version 1"):
        local.releases.read("toy", replace(second, release=first.release))


def test_nothing_is_released_whose_objects_are_not_there(local: SomeRegistry) -> None:
    manifest, folder = local.write()
    from handoff.tasks.registry.changes import ReleaseRequest
    from handoff.tasks.registry.messages import UploadJob
    from tests.tasks.registry.registering import Here

    uploaded = Here().run(UploadJob(manifest, folder, local.stores))
    library = Path(local.stores.objects) / object_key(manifest.targets[0].files[1].digest)
    library.unlink()
    request = ReleaseRequest("toy", manifest.digest, manifest.fingerprint, "candidate")
    with pytest.raises(StoreFailed, match="an object of the release is not in the store any more"):
        local.change(request, manifest=manifest, uploaded=uploaded)
    with pytest.raises(RegistryFailed, match="not registered"):
        local.releases.find("toy", None)


def test_a_refused_target_is_neither_uploaded_nor_signed(local: SomeRegistry) -> None:
    manifest, folder = local.write()
    refused = replace(manifest.targets[0], accepted=False, reasons=("wrong by 3",))
    with pytest.raises(BlessingRefused, match="wrong by 3"):
        local.register(replace(manifest, targets=(refused,)), folder)
    assert not Path(local.stores.objects, "models").exists()


def test_a_file_changed_after_it_was_verified_is_not_released(local: SomeRegistry) -> None:
    manifest, folder = local.write()
    (folder / manifest.targets[0].files[0].path).write_bytes(b"something else")
    with pytest.raises(StoreFailed, match="changed after it was verified"):
        local.register(manifest, folder)
    assert not Path(local.stores.objects, "models").exists()
