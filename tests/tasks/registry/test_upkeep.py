"""A whole store: copied to another place with nothing lost, and verified."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.errors import StoreFailed, UsageProblem
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.objects import object_key
from handoff.artifacts.stores.store import Store, open_store
from handoff.tasks.registry.upkeep.copy_store import CopyResult, copy_store
from handoff.tasks.registry.upkeep.verify_store import CheckResult, verify_store
from tests.artifacts.stores.store_fixtures import overwrite
from tests.tasks.registry.registering import SomeRegistry, some_registry


def ignore_progress(_what: str, _count: int, _size: int) -> None:
    pass


def copied(registry: SomeRegistry, to: Store, **changes: bool) -> CopyResult:
    target = Releases(to, registry.releases.trust)
    options = {"replaces": False, "pretend": False, **changes}
    return copy_store(registry.releases, target, progress=ignore_progress, **options)


def checked(registry: SomeRegistry, store: Store, *, quick: bool = False) -> CheckResult:
    return verify_store(
        Releases(store, registry.releases.trust), quick=quick, progress=ignore_progress
    )


def contents(store: Store) -> dict[str, bytes]:
    """Return all that a store keeps."""
    found = {one.key: store.read(one.key, 1 << 30) for one in store.keys("")}
    return {key: data for key, data in found.items() if data is not None}


def filled(root: Path, objects: str = "") -> SomeRegistry:
    """Return a registry with two models, of which one has two versions and an alias that moved."""
    root.mkdir()
    registry = some_registry(root, objects)
    registry.release("2026-11-21T00:00:00+00:00")
    registry.release("2026-11-22T00:00:00+00:00")
    registry.promote(1, override=True, reason="the first one")
    publish(registry.releases, "toy")
    registry.release("2026-11-23T00:00:00+00:00", model="other")
    store = registry.releases.store
    store.create("nights/20261121T020000Z/toy.json", b"a row")
    store.create("nights/20261121T020000Z.json", b"a night")
    return registry


@pytest.fixture(params=[
    "folder to folder", pytest.param("s3 to s3", marks=pytest.mark.server), *(
        pytest.param(way, marks=[pytest.mark.server, pytest.mark.long])
        for way in ("folder to s3", "s3 to folder")
    ),
])  # fmt: skip
def way(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SomeRegistry, Store]:
    """A filled registry, and the store that it is copied to."""
    if "s3" in request.param:
        settings: dict[str, str] = request.getfixturevalue("s3_environment")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
    source, _, target = request.param.partition(" to ")
    places = {"folder": "", "s3": f"s3://models/{uuid.uuid4().hex}"}
    registry = filled(tmp_path / "from", places[source])
    other = f"s3://models/{uuid.uuid4().hex}" if target == "s3" else str(tmp_path / "to")
    return registry, open_store(other)


def test_a_copy_holds_what_the_store_holds_and_a_second_one_copies_nothing(
    way: tuple[SomeRegistry, Store], tmp_path: Path
) -> None:
    registry, to = way
    source = registry.releases.store
    source.create(object_key(registry.entries()[0].manifest)[:-1] + "0", b"nobody's")
    first = copied(registry, to)
    assert (first.models, first.entries, first.records) == (("other", "toy"), 4, 2)
    assert first.there == 0
    assert first.objects > 0
    needed = {k: v for k, v in contents(source).items() if v != b"nobody's"}
    assert contents(to) == {k: v for k, v in needed.items() if not k.startswith("selftest/")}

    again = copied(registry, to)
    assert (again.objects, again.entries, again.records) == (0, 0, 0)
    assert again.there == first.objects
    assert checked(registry, to).lacking == ()
    assert checked(registry, to, quick=True).lacking == ()

    # What is released meanwhile comes with the next copy, and serves from there.
    registry.release("2026-11-24T00:00:00+00:00")
    assert copied(registry, to).entries == 1
    there = replace(registry, stores=replace(registry.stores, objects=to.location, seen=None))
    assert there.pull(tmp_path / "pulled", 3).version == 3


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    registry, to = filled(tmp_path / "from"), FolderStore(tmp_path / "to")
    pretended = copied(registry, to, pretend=True)
    assert contents(to) == {}
    assert pretended == copied(registry, to)


@pytest.fixture(scope="module")
def copied_from(tmp_path_factory: pytest.TempPathFactory) -> SomeRegistry:
    """A filled registry for tests that leave it as it is."""
    return filled(tmp_path_factory.mktemp("upkeep") / "from")


@pytest.mark.parametrize("survives", range(0, 40, 3))
def test_nothing_of_an_interrupted_copy_is_seen_and_the_next_one_ends_it(
    survives: int, copied_from: SomeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, to = copied_from, FolderStore(tmp_path / "to")
    left = survives

    class Killed(Exception):
        pass

    def once_less(write: str) -> None:
        before = getattr(FolderStore, write)

        def counted(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return before(*arguments, **named)

        monkeypatch.setattr(FolderStore, write, counted)

    for write in ("upload", "replace", "create"):
        once_less(write)
    with pytest.raises(Killed):
        copied(registry, to)
    # Whatever ledger there is, all that it names is there.
    monkeypatch.undo()
    assert checked(registry, to).lacking == ()
    copied(registry, to)
    assert contents(to) == contents(registry.releases.store)


def test_objects_that_are_others_are_neither_taken_nor_left(tmp_path: Path) -> None:
    registry, to = filled(tmp_path / "from"), FolderStore(tmp_path / "to")
    source = registry.releases.store
    copied(registry, to)
    key = object_key(registry.entries()[0].manifest)
    right = source.read(key, 1 << 30)
    assert right is not None
    wrong = bytes(len(right))
    overwrite(to, key, wrong)
    (lacking,) = checked(registry, to).lacking[:1]
    assert lacking.versions == ("toy@1",)
    assert copied(registry, to).objects == 1
    assert to.read(key, 1 << 30) == right

    to.remove(key)
    overwrite(source, key, wrong)
    with pytest.raises(StoreFailed, match="is not what its digest says"):
        copied(registry, to)


def test_another_history_is_refused_until_it_is_given_up(tmp_path: Path) -> None:
    registry = filled(tmp_path / "from")
    to = FolderStore(tmp_path / "to")
    copied(registry, to)
    # Somebody releases there what nobody has here, and here goes on, too.
    there = replace(registry, stores=replace(registry.stores, objects=to.location, seen=None))
    for version in (3, 4):
        assert there.release(f"2026-11-2{version}T01:00:00+00:00") == version
    ahead = copied(registry, to)
    assert (ahead.ahead, ahead.entries) == (("toy",), 0)
    assert len(there.entries()) == 5

    registry.release("2026-11-25T02:00:00+00:00")
    before = contents(to)
    with pytest.raises(StoreFailed, match=r"has another history .* toy from entry 4 on"):
        copied(registry, to)
    assert contents(to) == before
    assert copied(registry, to, replaces=True).entries == 1
    assert there.entries() == registry.entries()
    assert copied(registry, to).entries == 0
    assert checked(registry, to).lacking == ()
    keys = {key for key in contents(to) if key.startswith("models/")}
    assert keys == {k for k in contents(registry.releases.store) if k.startswith("models/")}


def test_a_record_that_is_another_one_there_stays_and_is_reported(tmp_path: Path) -> None:
    registry, to = filled(tmp_path / "from"), FolderStore(tmp_path / "to")
    key = "nights/20261121T020000Z.json"
    to.create(key, b"another night")
    assert copied(registry, to).differing == (key,)
    assert to.read(key, 100) == b"another night"


def test_nothing_is_copied_from_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    registry = some_registry(tmp_path / "from")
    with pytest.raises(UsageProblem, match="there is nothing to copy"):
        copied(registry, FolderStore(tmp_path / "to"))


def test_all_that_lacks_is_reported_and_by_whom_it_is_named(tmp_path: Path) -> None:
    registry = filled(tmp_path / "from")
    store = registry.releases.store
    whole = checked(registry, store)
    assert (whole.models, whole.versions, whole.lacking) == (2, 3, ())

    # What all versions have in common, the record of one, and an entry of a ledger.
    first, second, _ = registry.entries()
    claims = [registry.releases.read("toy", entry.pointer).claim for entry in (first, second)]
    named = [{*registry.releases.objects_of(claim)} for claim in claims]
    shared = min(named[0] & named[1])
    store.remove(object_key(shared))
    store.remove(object_key(second.manifest))
    store.remove("models/other/ledger/00000001.json")
    lacking = {one.versions: one for one in checked(registry, store).lacking}
    assert lacking[("toy@1",)].object == str(shared)
    assert lacking[("toy@1",)].what == "is not there"
    assert "an object is not in the store" in lacking[("toy@2",)].what
    assert checked(registry, store).models == 2
