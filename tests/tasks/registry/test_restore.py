"""The delivery is kept with its release: any version can be made again from the store alone."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_file, digest_folder
from handoff.artifacts.errors import PackageRefused, RegistryFailed, StoreFailed, UsageProblem
from handoff.artifacts.release.layout import write_parts
from handoff.artifacts.stores.objects import GRACE, Objects, object_key
from handoff.tasks.registry import pull
from handoff.tasks.registry.messages import CollectJob, RestoreJob, RestoreResult, UploadJob
from handoff.tasks.registry.upkeep import collect
from tests.tasks.registry.registering import Here, SomeRegistry, some_registry

ARCHIVE = b"PK\x03\x04 the weights, as torch.save writes them"


@pytest.fixture
def registry(tmp_path: Path) -> SomeRegistry:
    return some_registry(tmp_path)


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    """A staged delivery, one of whose files is empty."""
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / "__init__.py").write_bytes(b"")
    (folder / "module.py").write_text("import torch\n")
    (folder / "state_dict.pt").write_bytes(ARCHIVE)
    return folder


def keep(registry: SomeRegistry, delivery: Path, created: str = "") -> int:
    manifest, folder = registry.write_from(delivery, created)
    return registry.register(manifest, folder, delivery=delivery).version


def fetch(registry: SomeRegistry, to: Path, version: int = 1) -> RestoreResult:
    return pull.restore(RestoreJob(registry.stores, "toy", version, to))


def object_of(registry: SomeRegistry, path: Path) -> Path:
    return Path(registry.stores.objects) / object_key(digest_file(path))


def age(registry: SomeRegistry) -> None:
    """Make every object older than the collector's grace."""
    old = (datetime.now(UTC) - 3 * GRACE).timestamp()
    for path in Path(registry.stores.objects, "objects").rglob("*"):
        if path.is_file():
            os.utime(path, (old, old))


def test_what_is_restored_is_the_delivery_that_was_released(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    keep(registry, delivery)
    to = tmp_path / "again"
    result = fetch(registry, to)
    assert (result.folder, result.digest) == (to, digest_folder(delivery))
    released = registry.releases.read("toy", registry.releases.find("toy", 1))
    assert result.lineage == released.manifest.lineage
    assert {p.name: p.read_bytes() for p in to.iterdir()} == {
        p.name: p.read_bytes() for p in delivery.iterdir()
    }
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    before = to.stat().st_ino
    assert fetch(registry, to) == result
    assert to.stat().st_ino == before


def test_the_same_delivery_is_kept_once_however_often_it_is_built(
    registry: SomeRegistry, delivery: Path
) -> None:
    keep(registry, delivery)
    objects = {p.name for p in Path(registry.stores.objects, "objects").rglob("*") if p.is_file()}
    keep(registry, delivery, "2026-11-22T00:00:00+00:00")
    more = {
        p.name for p in Path(registry.stores.objects, "objects").rglob("*") if p.is_file()
    } - objects
    second = registry.releases.read("toy", registry.releases.find("toy", 2))
    assert not more & {d.hex for d in map(digest_file, delivery.iterdir())}
    assert second.claim.delivery is not None
    assert second.claim.delivery.hex not in more


def test_a_version_released_before_deliveries_were_kept_says_so(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    registry.release()
    with pytest.raises(
        RegistryFailed, match=r"released before .* Release it again from its folder"
    ):
        fetch(registry, tmp_path / "again")
    assert registry.releases.is_complete("toy", registry.releases.find("toy", 1))
    assert not (tmp_path / "again").exists()


def test_a_delivery_that_changed_since_it_was_taken_in_is_not_kept(
    registry: SomeRegistry, delivery: Path
) -> None:
    manifest, folder = registry.write_from(delivery)
    (delivery / "module.py").write_text("import os\n")
    with pytest.raises(StoreFailed, match="delivery changed after it was taken in"):
        registry.register(manifest, folder, delivery=delivery)
    store = Path(registry.stores.objects)
    assert not (store / "models").exists()
    assert not (store / "objects").exists()


def test_a_delivery_that_is_lost_is_reported_and_brought_back_by_who_has_it(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    manifest, folder = registry.write_from(delivery)
    registry.register(manifest, folder, delivery=delivery, rebuild=False)
    object_of(registry, delivery / "state_dict.pt").unlink()
    assert not registry.releases.is_complete("toy", registry.releases.find("toy", 1))
    with pytest.raises(StoreFailed, match="not in the store"):
        fetch(registry, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    again = registry.register(manifest, folder, delivery=delivery, rebuild=False)
    assert (again.entry, again.version) == (None, 1), "the version is whole again"
    assert fetch(registry, tmp_path / "again").digest == manifest.delivery


def test_nothing_is_released_whose_delivery_is_gone_by_then(
    registry: SomeRegistry, delivery: Path
) -> None:
    from handoff.tasks.registry.changes import ReleaseRequest

    manifest, folder = registry.write_from(delivery)
    uploaded = Here().run(UploadJob(manifest, folder, registry.stores, delivery))
    object_of(registry, delivery / "module.py").unlink()
    request = ReleaseRequest("toy", manifest.digest, manifest.fingerprint, "candidate")
    with pytest.raises(StoreFailed, match="an object of the release is not in the store any more"):
        registry.change(request, manifest=manifest, uploaded=uploaded)


def test_garbage_collection_spares_kept_deliveries_until_their_versions_are_retired(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    keep(registry, delivery)
    age(registry)
    job = CollectJob(registry.stores, GRACE / timedelta(hours=1))
    assert collect.run(job).removed == 0
    assert fetch(registry, tmp_path / "again").digest == digest_folder(delivery)
    registry.release("2026-11-22T00:00:00+00:00")
    registry.retire(1)
    age(registry)
    assert collect.run(job).removed > 0
    assert not object_of(registry, delivery / "state_dict.pt").exists()


def test_nothing_is_collected_while_a_ledger_is_gone_that_was_seen(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    keep(registry, delivery)
    registry.release("2026-11-22T00:00:00+00:00", model="other")
    age(registry)
    stores = replace(registry.stores, seen=tmp_path / "seen.json")
    job = CollectJob(stores, GRACE / timedelta(hours=1))
    assert collect.run(job).removed == 0
    ledgers = Path(stores.objects) / "models" / "other"
    ledgers.rename(tmp_path / "not-restored-yet")
    with pytest.raises(StoreFailed, match="that of other, got 1 other"):
        collect.run(job)
    (tmp_path / "not-restored-yet").rename(ledgers)
    assert collect.run(job).removed == 0


def test_a_list_that_names_another_delivery_is_refused(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    manifest, folder = registry.write_from(delivery)
    uploaded = Here().run(UploadJob(manifest, folder, registry.stores, delivery))
    objects = Objects(registry.releases.store)
    kept = {path.name: objects.put_parts(path) for path in delivery.iterdir()}
    for version, listed in enumerate(
        ({**kept, "module.py": kept["state_dict.pt"]}, {**kept, "../up": kept["module.py"]}), 1
    ):
        from handoff.tasks.registry.changes import ReleaseRequest

        wrong = replace(uploaded, delivery=objects.put_bytes(write_parts(listed)))
        request = ReleaseRequest(
            "toy", manifest.digest, manifest.fingerprint, "candidate", rebuild=True
        )
        registry.change(request, manifest=manifest, uploaded=wrong)
        with pytest.raises(PackageRefused, match=r"not what was released|no delivery has"):
            fetch(registry, tmp_path / "again", version)
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "up").exists()


def test_a_folder_with_something_else_in_it_is_left_as_it_is(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    keep(registry, delivery)
    to = tmp_path / "mine"
    to.mkdir()
    (to / "notes.txt").write_text("keep me")
    with pytest.raises(UsageProblem, match="something else in it"):
        fetch(registry, to)
    assert (to / "notes.txt").read_text() == "keep me"


def test_pulling_fetches_no_delivery(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    keep(registry, delivery)
    for path in delivery.iterdir():
        object_of(registry, path).unlink()
    registry.pull(tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "module.py").exists()


def test_the_copies_for_people_hold_the_list_of_the_deliverys_objects(
    registry: SomeRegistry, delivery: Path
) -> None:
    keep(registry, delivery)
    listed = Path(registry.stores.objects, "models/toy/versions/1/DELIVERY").read_text()
    assert [line.split()[2] for line in listed.splitlines()] == [
        "__init__.py", "module.py", "state_dict.pt",
    ]  # fmt: skip


def test_what_is_restored_is_taken_in_as_the_same_delivery(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    import torch

    from handoff.tasks.intake.messages import IntakeJob
    from handoff.tasks.intake.step import run as take_in
    from tests.tasks.deliveries import write_delivery

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
    written = write_delivery(tmp_path / "delivery", module, {"input": torch.randn(4, 8)})
    taken = take_in(IntakeJob(written, tmp_path / "taken"))
    manifest, folder = registry.write_from(taken.staging)
    assert manifest.delivery == taken.digest
    registry.register(manifest, folder, delivery=taken.staging)
    again = fetch(registry, tmp_path / "again")
    retaken = take_in(IntakeJob(again.folder, tmp_path / "retaken"))
    assert (retaken.digest, retaken.files) == (taken.digest, taken.files)
