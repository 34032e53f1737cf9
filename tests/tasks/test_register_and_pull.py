"""Registering is all or nothing and can be run again; what is pulled is what was registered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.digest import digest_bytes
from artifacts.errors import (
    BlessingRefused,
    PackageRefused,
    RegistryFailed,
    StoreFailed,
    UsageProblem,
)
from artifacts.manifest import Manifest
from artifacts.old_registry import Registry
from artifacts.package import check_release
from artifacts.steps import LookUpJob, PullJob, RegisterJob, Stores
from artifacts.target import native_cpu_target
from tasks import look_up, pull, register
from tests.artifacts.samples import TORCH, sample_target, write_release


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    """An embedded registry and a folder."""
    return Stores(
        str(tmp_path / "store"), f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "mlflow")
    )


def registry(stores: Stores) -> Registry:
    return Registry(stores.tracking_uri, stores.artifact_root)


def release(tmp_path: Path, stores: Stores, model: str = "toy", **changes: str) -> Manifest:
    """Register a small release; return its manifest."""
    folder = tmp_path / f"release-{model}-{changes.get('created', '')}"
    manifest = replace(write_release(folder, model=model), **changes)  # type: ignore[arg-type]
    register.run(RegisterJob(manifest, folder, stores))
    return manifest


def pulling(stores: Stores, to: Path, **changes: object) -> PullJob:
    plain: dict[str, object] = {
        "name": "toy",
        "reference": "candidate",
        "to": to,
        "target": "auto",
        "stores": stores,
        "torch_version": TORCH,
        **changes,
    }
    return PullJob(**plain)  # type: ignore[arg-type]


def test_a_release_becomes_one_version_with_everything_a_person_looks_for(
    tmp_path: Path, stores: Stores
) -> None:
    manifest = release(tmp_path, stores)
    entry = registry(stores).find("toy", "candidate")
    assert (entry.version, entry.aliases, entry.manifest) == (1, ("candidate",), manifest.digest)
    assert entry.verdict == "sound within limits"
    client = registry(stores)._client
    run = client.get_run(entry.run_id)
    slug = manifest.targets[0].slug
    assert run.data.metrics[f"{slug}/speedup"] == 2.0
    assert run.data.metrics[f"{slug}/max_abs"] == 3e-7
    assert run.data.params["passes"] == "fold-batch-norm"
    assert run.data.tags["handoff.commit"] == "0123abcd"
    assert run.info.status == "FINISHED"
    version = client.get_model_version("toy", "1")
    assert str(version.description).startswith("**Numbers: accepted.")
    folder = Path(entry.report).parent
    assert Path(entry.report).name == "report.html"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"manifest.json", "report.md", f"{slug}/model.so", "MLmodel"} <= names
    assert f"{slug}/model.pt2" not in names


def test_the_same_release_registered_twice_is_one_version(tmp_path: Path, stores: Stores) -> None:
    release(tmp_path, stores)
    release(tmp_path, stores)
    assert registry(stores).find("toy", None).version == 1
    release(tmp_path, stores, created="2026-11-22T00:00:00+00:00")
    assert registry(stores).find("toy", None).version == 2
    assert registry(stores).find("toy", "candidate").version == 2


def test_a_target_that_was_refused_is_never_registered(tmp_path: Path, stores: Stores) -> None:
    folder = tmp_path / "release"
    manifest = write_release(folder)
    refused = replace(manifest.targets[0], accepted=False, reasons=("wrong by 3",))
    job = RegisterJob(replace(manifest, targets=(refused,)), folder, stores)
    with pytest.raises(BlessingRefused, match="wrong by 3"):
        register.run(job)
    assert registry(stores).models() == ()


def test_a_file_changed_after_it_was_verified_is_not_registered(
    tmp_path: Path, stores: Stores
) -> None:
    folder = tmp_path / "release"
    manifest = write_release(folder)
    (folder / manifest.targets[0].files[0].path).write_bytes(b"something else")
    with pytest.raises(StoreFailed, match="changed after it was verified"):
        register.run(RegisterJob(manifest, folder, stores))
    assert registry(stores).models() == ()


def test_a_known_fingerprint_is_found_and_its_alias_moved(tmp_path: Path, stores: Stores) -> None:
    manifest = release(tmp_path, stores)
    known = look_up.run(LookUpJob("toy", manifest.fingerprint, stores, "trial")).known
    assert known is not None
    assert known.aliases == ("candidate", "trial")
    assert look_up.run(LookUpJob("toy", digest_bytes(b"other"), stores, "trial")).known is None
    assert look_up.run(LookUpJob("none", manifest.fingerprint, stores, "trial")).known is None


def test_unknown_names_say_what_there_is(tmp_path: Path, stores: Stores) -> None:
    release(tmp_path, stores)
    for name, reference in (("toy", "production"), ("toy", 7), ("other", None)):
        with pytest.raises(RegistryFailed, match=r"not registered: .* got toy registered"):
            registry(stores).find(name, reference)
    with pytest.raises(UsageProblem, match="no model's name"):
        registry(stores).find("Not A Name", None)


def test_reading_a_registry_that_is_not_there_creates_nothing(stores: Stores) -> None:
    assert registry(stores).models() == ()
    assert not Path(stores.tracking_uri.removeprefix("sqlite:///")).exists()


def test_what_is_pulled_is_the_release_and_a_second_pull_changes_nothing(
    tmp_path: Path, stores: Stores
) -> None:
    manifest = release(tmp_path, stores)
    to = tmp_path / "pulled"
    result = pull.run(pulling(stores, to))
    assert result.target == native_cpu_target().slug
    assert check_release(to, TORCH).manifest == manifest
    before = to.stat().st_ino
    assert pull.run(pulling(stores, to)) == result
    assert to.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_package_that_asks_most_of_the_processor_and_fits_is_chosen(
    tmp_path: Path, stores: Stores
) -> None:
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


def test_a_folder_with_something_else_in_it_is_left_as_it_is(
    tmp_path: Path, stores: Stores
) -> None:
    release(tmp_path, stores)
    to = tmp_path / "mine"
    to.mkdir()
    (to / "notes.txt").write_text("keep me")
    with pytest.raises(UsageProblem, match="something else in it"):
        pull.run(pulling(stores, to))
    assert [path.name for path in to.iterdir()] == ["notes.txt"]


def test_an_object_changed_in_the_store_is_noticed_and_nothing_is_pulled(
    tmp_path: Path, stores: Stores
) -> None:
    manifest = release(tmp_path, stores)
    victim = manifest.targets[0].files[1].digest
    path = Path(stores.objects) / "objects" / "sha256" / victim.hex
    path.chmod(0o644)
    path.write_bytes(b"something else")
    with pytest.raises(StoreFailed, match="not what its digest says"):
        pull.run(pulling(stores, tmp_path / "pulled"))
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda so: so.write_bytes(so.read_bytes()[:-1] + b"!"), "the digest"),
        (lambda so: so.write_bytes(b""), "bytes, got 0 bytes"),
        (lambda so: so.unlink(), "got nothing"),
        (lambda so: (so.rename(so.parent / "x"), so.symlink_to("x")), "something else"),
        (lambda so: (so.parent / "extra.so").write_bytes(b""), "doesn't name"),
        (lambda so: (so.parents[1] / "manifest.json").write_text("{}"), "release record"),
    ],
)
def test_a_pulled_folder_that_was_tampered_with_is_refused(
    spoil: object, match: str, tmp_path: Path, stores: Stores
) -> None:
    release(tmp_path, stores)
    to = tmp_path / "pulled"
    pull.run(pulling(stores, to))
    assert callable(spoil)
    spoil(to / native_cpu_target().slug / "model.so")
    with pytest.raises(PackageRefused, match=match):
        check_release(to, TORCH)
