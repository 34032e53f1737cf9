"""What is pulled is what was signed, whole and for this machine, or nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.errors import PackageRefused, StoreFailed, UsageProblem
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.mechanics import Mechanics
from handoff.artifacts.release.package import check_release
from handoff.artifacts.stores.objects import object_key
from handoff.tasks.registry import pull
from tests.artifacts.samples import TORCH, sample_target, write_release
from tests.limits import LIMIT_S
from tests.tasks.registry.registering import SomeRegistry, some_registry

SLUG = native_cpu_target().slug


@pytest.fixture
def registry(tmp_path: Path) -> SomeRegistry:
    """A registry with one release."""
    made = some_registry(tmp_path)
    made.release()
    return made


def released(registry: SomeRegistry) -> Manifest:
    return registry.releases.read("toy", registry.releases.find("toy", "candidate")).manifest


def litter(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_is_pulled_is_the_release_and_a_second_pull_changes_nothing(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    to = tmp_path / "pulled"
    result = registry.pull(to)
    assert result.target == SLUG
    checked = check_release(to, TORCH, registry.releases.trust)
    assert (checked.manifest, checked.claim.version) == (released(registry), 1)
    before = to.stat().st_ino
    assert registry.pull(to) == result
    assert to.stat().st_ino == before
    assert litter(tmp_path) == []


def test_pulling_asks_nothing_but_the_store(registry: SomeRegistry, tmp_path: Path) -> None:
    alone = replace(registry.stores, tracking_uri="http://127.0.0.1:9")
    assert replace(registry, stores=alone).pull(tmp_path / "pulled").version == 1


def test_the_package_that_asks_most_of_the_processor_and_fits_is_chosen(tmp_path: Path) -> None:
    native = tuple(sorted(native_cpu_target().cpu_flags))
    targets = (
        sample_target("cpu-avx2", flags=native[:1]),
        sample_target("cpu-avx512", flags=native),
        sample_target("cpu-other", flags=(*native, "a_flag_of_tomorrow")),
    )
    manifest = write_release(tmp_path / "release", *targets)
    assert pull.choose_target(manifest, "auto", TORCH).slug == "cpu-avx512"
    assert pull.choose_target(manifest, "cpu-other", TORCH).slug == "cpu-other"
    with pytest.raises(UsageProblem, match="expected auto, or one of cpu-avx2"):
        pull.choose_target(manifest, "cuda-sm90", TORCH)
    with pytest.raises(PackageRefused, match=r"needs torch 2\.15\.0, and this is torch 2\.11\.0"):
        pull.choose_target(manifest, "auto", "2.11.0")


def test_a_package_for_another_machine_is_pulled_when_it_is_named(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    folder = registry.root / "two"
    mechanics = Mechanics(case="batch=1")
    targets = [
        replace(sample_target(slug, flags=flags), mechanics=mechanics)
        for slug, flags in (("cpu-avx2", ()), ("cpu-amx", ("a_flag_of_tomorrow",)))
    ]
    manifest = replace(write_release(folder, *targets), created="2026-11-22T00:00:00+00:00")
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    registry.register(manifest, folder)
    assert registry.pull(tmp_path / "here").target == "cpu-avx2"
    assert registry.pull(tmp_path / "there", target="cpu-amx").target == "cpu-amx"
    assert (tmp_path / "there" / "cpu-amx" / "model.so").exists()
    assert not (tmp_path / "there" / "cpu-avx2").exists()


def test_a_folder_with_something_else_in_it_is_left_as_it_is(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    to = tmp_path / "mine"
    to.mkdir()
    (to / "notes.txt").write_text("keep me")
    with pytest.raises(UsageProblem, match="something else in it"):
        registry.pull(to)
    assert [path.name for path in to.iterdir()] == ["notes.txt"]


def change_object(registry: SomeRegistry, data: bytes) -> Path:
    """Change the package's object behind the store's back."""
    victim = released(registry).targets[0].files[1].digest
    path = Path(registry.stores.objects) / object_key(victim)
    path.chmod(0o644)
    path.write_bytes(data)
    return path


def test_an_object_changed_in_the_store_is_noticed_and_nothing_is_pulled(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    change_object(registry, b"x" * len(b"cpu-avx512 model.so"))
    with pytest.raises(StoreFailed, match="not what its digest says"):
        registry.pull(tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
    with pytest.raises(StoreFailed, match="not what its digest says"):
        registry.pull(None)


def test_verifying_only_keeps_nothing(registry: SomeRegistry, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = registry.pull(None)
    assert (result.folder, result.version, result.target) == (None, 1, SLUG)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pull_that_failed_is_gone_on_with_and_leaves_no_litter(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    good = Path(registry.stores.objects) / object_key(released(registry).targets[0].files[1].digest)
    right = good.read_bytes()
    change_object(registry, b"x" * len(right))
    with pytest.raises(StoreFailed, match="not what its digest says"):
        registry.pull(tmp_path / "pulled")
    change_object(registry, right)
    # What was fetched before the failure is not asked for again: it is not there any more.
    examples = Path(registry.stores.objects) / object_key(released(registry).files[0].digest)
    examples.unlink()
    registry.pull(tmp_path / "pulled")
    assert check_release(tmp_path / "pulled", TORCH, registry.releases.trust).targets == (SLUG,)
    assert litter(tmp_path) == []


def _pull_slowly(registry: SomeRegistry, to: Path, begun: Path) -> None:
    def wait(*_: object) -> None:
        begun.touch()
        time.sleep(60)

    # This process is there to wait.
    pull._require_listed = wait  # type: ignore[assignment]
    registry.pull(to)


def test_a_second_pull_into_the_folder_learns_of_the_first_and_a_killed_one_is_no_obstacle(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    to, begun = tmp_path / "pulled", tmp_path / "begun"
    # Not a fork of this process, where threads of other tests' servers may hold locks.
    first = multiprocessing.get_context("spawn").Process(
        target=_pull_slowly, args=(registry, to, begun)
    )
    first.start()
    deadline = time.monotonic() + LIMIT_S
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(UsageProblem, match="is being pulled into already"):
        registry.pull(to)
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    registry.pull(to)
    assert litter(tmp_path) == []


def spoil_record(library: Path) -> None:
    (library.parents[1] / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda so: so.write_bytes(so.read_bytes()[:-1] + b"!"), "the digest"),
        (lambda so: so.write_bytes(b""), "bytes, got 0 bytes"),
        (lambda so: so.unlink(), "got nothing"),
        (lambda so: (so.rename(so.parent / "x"), so.symlink_to("x")), "something else"),
        (lambda so: (so.parent / "extra.so").write_bytes(b""), "doesn't name"),
        (spoil_record, "is not the one that was signed"),
    ],
)
def test_a_pulled_folder_that_was_tampered_with_is_refused_and_not_taken_for_the_release(
    spoil: Callable[[Path], object], match: str, registry: SomeRegistry, tmp_path: Path
) -> None:
    to = tmp_path / "pulled"
    registry.pull(to)
    spoil(to / SLUG / "model.so")
    with pytest.raises(PackageRefused, match=match):
        check_release(to, TORCH, registry.releases.trust)
    with pytest.raises(UsageProblem, match="something else in it"):
        registry.pull(to)
