"""A model that follows an alias: what takes over, and what is served on when something fails."""

from __future__ import annotations

import logging
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import handoff
from handoff.artifacts.delivery.contract import Structure
from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import HandoffError, PackageRefused, RegistryFailed, UsageProblem
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.release.layout import ledger_key
from handoff.artifacts.release.ledger import entry_statement
from handoff.artifacts.release.signing import make_key, open_signer, sign_statement
from handoff.artifacts.stores.objects import object_key
from handoff.tasks.follow import following
from handoff.tasks.follow.following import FollowedModel
from handoff.tasks.follow.serving import Serving
from tests.limits import LIMIT_S
from tests.tasks.built_release import BuiltRelease
from tests.tasks.follow.versions import QUICK_PLAN, Shelf, crashing_library, shelf_of
from tests.tasks.registry.registering import some_registry

pytestmark = pytest.mark.compile
HOURS = 9999.0
PRODUCT_PLAN = following._TRY_RELEASE_PLAN


@pytest.fixture
def shelf(tmp_path: Path, built_release: BuiltRelease, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """A registry whose version 1 is in production, as this process's settings name it."""
    registry = some_registry(tmp_path)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", registry.stores.objects)
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", registry.stores.trusted[0])
    monkeypatch.setattr(following, "_TRY_RELEASE_PLAN", QUICK_PLAN)
    shelf = shelf_of(registry, built_release)
    shelf.release(1.0)
    return shelf


@pytest.fixture
def followed(shelf: Shelf) -> Iterator[FollowedModel]:
    """Production, followed by hand."""
    with handoff.follow("toy@production", every_s=HOURS) as model:
        yield model


def test_a_promotion_and_a_roll_back_take_over_while_who_holds_a_version_keeps_it(
    shelf: Shelf, followed: FollowedModel
) -> None:
    first = followed.serves
    assert (first.model, first.alias, first.version, first.commit) == (
        "toy", "production", 1, "0123abc"
    )  # fmt: skip
    assert first.is_current
    assert followed.look() == replace(first, looked=followed.serves.looked)
    first_model = followed.model
    version = shelf.release(2.0)
    (scores,) = followed(*shelf.call)
    assert shelf.factor_of(scores) == 1.0
    now = followed.look()
    assert (now.version, now.wanted, now.error) == (version, version, "")
    assert now.since > first.since
    assert shelf.factor_of(*followed(*shelf.call)) == 2.0
    assert shelf.factor_of(*first_model(*shelf.call)) == 1.0
    shelf.registry.roll_back()
    assert followed.look().version == 1
    assert shelf.factor_of(*followed(*shelf.call)) == 1.0
    assert repr(followed).startswith("<toy@production, version 1 for cpu-")


def test_the_thread_takes_over_by_itself_and_says_so(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    changes: list[Serving] = []
    caplog.set_level(logging.INFO, "handoff.follow")
    with handoff.follow("toy@production", every_s=0.2, on_change=changes.append) as followed:
        shelf.release(3.0)
        deadline = time.monotonic() + LIMIT_S
        while followed.serves.version == 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert shelf.factor_of(*followed(*shelf.call)) == 3.0
    assert [serving.version for serving in changes] == [2]
    assert "toy@production: version 2 is served, and was 1" in caplog.text
    assert not [t for t in threading.enumerate() if t.name == "handoff-follow"]


def test_one_that_was_closed_is_not_called_any_more(followed: FollowedModel, shelf: Shelf) -> None:
    model = followed.model
    followed.close()
    followed.close()
    assert followed.look().version == 1
    with pytest.raises(UsageProblem, match="that was closed can't be called"):
        followed(*shelf.call)
    assert shelf.factor_of(*model(*shelf.call)) == 1.0


def test_inputs_are_checked_as_the_version_that_is_served_declares_them(
    followed: FollowedModel, shelf: Shelf
) -> None:
    ids, features = shelf.call
    with pytest.raises(handoff.InputsRefused, match="expected int64"):
        followed(ids.int(), features)
    assert followed.signature.inputs[0].name == "ids"


def stays(followed: FollowedModel, shelf: Shelf, match: str) -> None:
    """Require that version 1 is served on after a look, and that it says why."""
    now = followed.look()
    assert now.version == 1
    assert not now.is_current
    assert match in now.error, now.error
    assert shelf.factor_of(*followed(*shelf.call)) == 1.0
    # A later look says the same, whether it was tried again or not.
    assert match in followed.look().error


def recovers(followed: FollowedModel, shelf: Shelf, factor: float = 5.0) -> None:
    version = shelf.release(factor)
    assert followed.look().version == version, followed.serves
    assert followed.serves.error == ""
    assert shelf.factor_of(*followed(*shelf.call)) == factor


def test_a_package_that_ends_the_process_which_opens_it_ends_another_one(
    followed: FollowedModel, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_TRY_RELEASE_PLAN", PRODUCT_PLAN)
    shelf.release(2.0, library=crashing_library(tmp_path))
    stays(followed, shelf, "toy version 2 ends the process that opens or calls it: expected a")
    assert "SIGSEGV" in followed.serves.error
    recovers(followed, shelf)


def test_a_package_that_is_none_is_refused(followed: FollowedModel, shelf: Shelf) -> None:
    shelf.release(2.0, library=b"no library")
    stays(followed, shelf, "model.so can't be opened")
    library = (shelf.built.package / "model.so").read_bytes()
    shelf.release(2.0, library=library[: len(library) // 2])
    # The loader maps what isn't there.
    stays(followed, shelf, "toy version 3 ends the process that opens or calls it")
    assert "SIGBUS" in followed.serves.error
    recovers(followed, shelf)


def test_other_outputs_than_the_original_models_are_refused(
    followed: FollowedModel, shelf: Shelf
) -> None:
    shelf.release(2.0, golden=2.1)
    stays(followed, shelf, "toy version 2 doesn't give the original model's outputs on example 0")
    recovers(followed, shelf)


def test_a_package_for_other_machines_is_refused(followed: FollowedModel, shelf: Shelf) -> None:
    (record,) = shelf.built.manifest.targets
    manifest, folder = shelf.write(2.0, 2.0, None)
    fit = Fit(cpu_flags=("a_flag_of_tomorrow",), torch="2.15.0")
    targets = (replace(manifest.targets[0], fit=fit),)
    changed = replace(manifest, targets=targets)
    (folder / "manifest.json").write_bytes(changed.to_bytes())
    shelf.promote(shelf.registry.register(changed, folder).version)
    stays(followed, shelf, "it needs a processor with a_flag_of_tomorrow")
    assert record.slug in followed.serves.error
    recovers(followed, shelf)


def test_a_version_that_takes_less_is_not_served_unless_that_is_meant(
    followed: FollowedModel, shelf: Shelf
) -> None:
    signature = shelf.built.manifest.signature
    fewer = replace(signature, dimensions={"batch": Dimension(1, 64)})
    version = shelf.release(2.0, signature=fewer)
    stays(followed, shelf, "it refuses those with batch of 65 to 2048: it takes 1 to 64")
    with handoff.follow("toy@production", every_s=HOURS) as anew:
        assert anew.serves.version == version
    shelf.registry.roll_back()
    with handoff.follow("toy@production", every_s=HOURS, narrower=True) as meant:
        shelf.promote(version)
        assert meant.look().version == version


def test_a_version_whose_outputs_are_others_is_not_served(
    followed: FollowedModel, shelf: Shelf
) -> None:
    signature = shelf.built.manifest.signature
    renamed = tuple(replace(spec, name="logits") for spec in signature.outputs)
    shelf.release(2.0, signature=replace(signature, outputs=renamed))
    stays(followed, shelf, "outputs logits: float32 of 2 axes, where they were output0")


def test_a_version_whose_result_has_another_structure_is_not_served(
    followed: FollowedModel, shelf: Shelf
) -> None:
    structure = Structure(outputs=("['output0']",), result="{'output0': tensor}")
    version = shelf.release(2.0, structure=structure)
    stays(followed, shelf, "a result {'output0': tensor}, where it was a tuple of tensors")
    with handoff.follow("toy@production", every_s=HOURS) as anew:
        assert anew.serves.version == version
        answer = anew(**shelf.inputs)
        assert shelf.factor_of(answer["output0"]) == 2.0


def test_a_store_that_is_away_changes_nothing_until_it_is_back(
    followed: FollowedModel, shelf: Shelf
) -> None:
    store = Path(shelf.registry.stores.objects)
    away = store.rename(store.with_name("away"))
    stays(followed, shelf, "toy's ledger went back")
    away.rename(store)
    assert followed.look().is_current
    recovers(followed, shelf)


def test_an_object_that_is_damaged_is_fetched_again_later(
    followed: FollowedModel, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = shelf.release(2.0)
    pointer = shelf.registry.releases.find("toy", version)
    manifest = shelf.registry.releases.read("toy", pointer).claim.manifest
    path = Path(shelf.registry.stores.objects) / object_key(manifest)
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(good[:-9] + b"x" + good[-8:])
    stays(followed, shelf, "not what its digest says")
    path.write_bytes(good)
    # Not before the pause is over: a store isn't asked for gigabytes at each look.
    assert followed.look().version == 1
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + HOURS)
    assert followed.look().version == version


def test_an_entry_that_an_unknown_key_has_signed_is_not_followed(
    followed: FollowedModel, shelf: Shelf, tmp_path: Path
) -> None:
    entry = shelf.registry.entries()[-1]
    path = Path(shelf.registry.stores.objects) / ledger_key("toy", entry.sequence + 1)
    private, public = tmp_path / "other" / "key.pem", tmp_path / "other" / "key.pub"
    make_key(private, public)
    forged = entry_statement(replace(entry, sequence=entry.sequence + 1))
    path.write_bytes(sign_statement(forged, open_signer(str(private))))
    stays(followed, shelf, "is not verified: expected a signature by a trusted key")
    path.unlink()
    assert followed.look().is_current


def test_an_alias_that_is_gone_changes_nothing(followed: FollowedModel, shelf: Shelf) -> None:
    entry = shelf.registry.entries()[-1]
    without = {name: pointer for name, pointer in entry.aliases.items() if name != "production"}
    bare = replace(entry, sequence=entry.sequence + 1, aliases=without)
    path = Path(shelf.registry.stores.objects) / ledger_key("toy", bare.sequence)
    path.write_bytes(sign_statement(entry_statement(bare), open_signer(shelf.registry.key.uri)))
    stays(followed, shelf, "toy@production is not registered")


@contextmanager
def no_room() -> Iterator[None]:
    """Let no file of this process grow beyond some kilobytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_changes_nothing_until_there_is_room(
    followed: FollowedModel, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = shelf.release(2.0)
    with no_room():
        stays(followed, shelf, "File too large")
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + HOURS)
    assert followed.look().version == version


def test_a_folder_for_what_is_pulled_that_is_gone_is_reported(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "pulls").mkdir()
    options = {"every_s": HOURS, "folder": tmp_path / "pulls"}
    with handoff.follow("toy@production", **options) as followed:  # type: ignore[arg-type]
        assert list((tmp_path / "pulls").iterdir()) == []
        shutil.rmtree(tmp_path / "pulls")
        shelf.release(2.0)
        stays(followed, shelf, "expected a folder for temporary files with room in it")


def test_what_can_not_be_opened_at_the_start_is_raised(shelf: Shelf) -> None:
    with pytest.raises(RegistryFailed, match="toy@nightly is not registered"):
        handoff.follow("toy@nightly")
    shelf.release(2.0, golden=3.0)
    with pytest.raises(PackageRefused, match="doesn't give the original model's outputs"):
        handoff.follow("toy@production")


@pytest.mark.parametrize(
    ("reference", "options", "match"),
    [
        ("toy", {}, "names no alias that could be followed: expected NAME@ALIAS, got toy"),
        ("toy@3", {}, "names no alias that could be followed"),
        ("toy@production", {"every_s": 0.0}, "every_s above 0"),
        ("toy@production", {"jitter": 2.0}, "jitter from 0 to 1"),
        ("toy@production", {"keys": "nowhere.pub"}, "nowhere.pub holds no public key"),
    ],
)
def test_what_can_not_be_followed_is_refused(
    reference: str, options: dict[str, object], match: str, shelf: Shelf
) -> None:
    with pytest.raises(HandoffError, match=match):
        handoff.follow(reference, **options)  # type: ignore[arg-type]
