"""A model's ledger: releases, promotions and roll backs are entries, each the only next one."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import (
    HandoffError,
    RegistryFailed,
    UsageProblem,
)
from handoff.artifacts.stores.objects import object_key
from handoff.tasks.registry import append
from tests.artifacts.samples import TORCH
from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.server)])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SomeRegistry]:
    """An empty registry in a folder, and in a bucket of an S3 endpoint over HTTP."""
    if request.param == "s3":
        settings: dict[str, str] = request.getfixturevalue("s3_environment")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield some_registry(tmp_path, f"s3://models/{uuid.uuid4().hex}")
    else:
        yield some_registry(tmp_path)


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who lost a race try again soon: here that is most of the time."""
    monkeypatch.setattr(append, "_FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr(append, "_LONGEST_PAUSE_S", 1.0)


def test_a_release_is_one_signed_entry_that_moves_its_alias(registry: SomeRegistry) -> None:
    assert registry.release() == 1
    (entry,) = registry.entries()
    assert (entry.action, entry.version, entry.alias, entry.replaced) == (
        "release", 1, "candidate", None,
    )  # fmt: skip
    assert entry.aliases["candidate"].version == 1
    assert (entry.by, entry.run) == ("ann@training", "run-1")
    found = registry.releases.read("toy", registry.releases.find("toy", "candidate"))
    assert found.claim.version == 1
    assert found.manifest.digest == entry.manifest


def test_a_version_is_found_by_its_record_as_its_report_names_it(registry: SomeRegistry) -> None:
    for day in (21, 22):
        registry.release(f"2026-11-{day}T00:00:00+00:00")
    for entry in registry.entries():
        found = registry.releases.find("toy", entry.manifest.short)
        assert (found.version, found.release) == (entry.version, entry.release)
        assert registry.releases.find("toy", entry.manifest.hex) == found
    for unknown in (registry.entries()[0].manifest.hex[:11], "0" * 12, "f" * 65, "0" * 11 + "g"):
        with pytest.raises(RegistryFailed, match="is not registered"):
            registry.releases.find("toy", unknown)


def test_the_same_delivery_is_found_again_and_a_rebuild_is_a_version_of_its_own(
    registry: SomeRegistry,
) -> None:
    manifest, folder = registry.write()
    assert registry.register(manifest, folder, rebuild=False).version == 1
    again = registry.register(manifest, folder, rebuild=False)
    assert (again.entry, again.version, again.aliases) == (None, 1, ("candidate",))
    elsewhere = registry.register(manifest, folder, "trial", rebuild=False)
    assert (elsewhere.version, elsewhere.aliases) == (1, ("candidate", "trial"))
    assert registry.release("2026-11-22T00:00:00+00:00") == 2
    assert [entry.version for entry in registry.entries()] == [1, 1, 2]


def test_a_version_whose_objects_are_gone_is_not_found_again_but_made_anew(
    local: SomeRegistry,
) -> None:
    manifest, folder = local.write()
    local.register(manifest, folder, rebuild=False)
    (Path(local.stores.objects) / object_key(manifest.targets[0].files[1].digest)).unlink()
    other, folder = local.write("2026-11-22T00:00:00+00:00")
    files = []
    for file in other.targets[0].files:
        path = folder / file.path
        path.write_bytes(f"other bytes of {file.path}".encode())
        size = path.stat().st_size
        files.append(replace(file, digest=digest_file(path), size_bytes=size))
    rebuilt = replace(other, targets=(replace(other.targets[0], files=tuple(files)),))
    assert rebuilt.fingerprint == manifest.fingerprint
    assert local.register(rebuilt, folder, rebuild=False).version == 2


@pytest.mark.usefixtures("_short_pauses")
def test_eight_releases_at_once_are_eight_versions_in_one_chain(registry: SomeRegistry) -> None:
    made = [registry.write(f"2026-11-21T03:00:{n:02}+00:00") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda one: registry.register(*one).version, made))
    assert sorted(versions) == list(range(1, 9))
    assert [entry.version for entry in registry.entries()] == list(range(1, 9))
    for version in versions:
        manifest = registry.releases.read("toy", registry.releases.find("toy", version)).manifest
        assert manifest.digest == made[versions.index(version)][0].digest


@pytest.mark.usefixtures("_short_pauses")
def test_of_four_promoters_at_once_one_wins_and_the_others_learn_by_whom(
    registry: SomeRegistry,
) -> None:
    for second in range(5):
        registry.release(f"2026-11-21T03:00:{second:02}+00:00")
    registry.promote(1)

    def promote(version: int) -> str:
        try:
            registry.promote(version, expected=1, is_conditional=True)
        except RegistryFailed as error:
            return str(error)
        return "won"

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(promote, (2, 3, 4, 5)))
    assert results.count("won") == 1
    winner = (2, 3, 4, 5)[results.index("won")]
    assert registry.releases.find("toy", "production").version == winner
    for text in results:
        if text != "won":
            assert "moved by another meanwhile: expected production at version 1" in text
            assert f"got version {winner}, put there by ann@training" in text
    assert [e.version for e in registry.entries() if e.action == "promote"] == [1, winner]


def test_a_person_with_an_s3_client_and_a_shell_finds_and_checks_a_release(
    local: SomeRegistry, tmp_path: Path
) -> None:
    manifest, folder = local.write()
    local.register(manifest, folder)
    store, to = Path(local.stores.objects), tmp_path / "by hand"
    to.mkdir()
    script = """
        set -eu
        cp "$STORE"/models/toy/versions/1/* .
        while read -r hex bytes path; do
          mkdir -p "$(dirname "$path")"; cat "$STORE/objects/sha256/$hex" >> "$path"
        done < PARTS
        sha256sum --check --quiet SHA256SUMS
    """
    subprocess.run(["sh", "-c", script], cwd=to, env={"STORE": str(store)}, check=True)
    for file in (*manifest.files, *manifest.targets[0].files):
        assert (to / file.path).read_bytes() == (folder / file.path).read_bytes()
    pointer = json.loads((store / "models/toy/aliases/candidate.json").read_text())
    assert set(pointer) == {"payload", "payloadType", "signatures"}


def test_what_an_interrupted_release_left_unwritten_the_next_writer_writes(
    local: SomeRegistry,
) -> None:
    local.release()
    local.release("2026-11-22T00:00:00+00:00")
    store = Path(local.stores.objects)
    for path in [
        *(store / "models/toy/versions").rglob("*"),
        *(store / "models/toy/aliases").iterdir(),
    ]:
        if path.is_file():
            path.unlink()
    assert local.releases.find("toy", 1).version == 1, "the ledger is enough to read"
    local.release("2026-11-23T00:00:00+00:00")
    for version in (1, 2, 3):
        names = {path.name for path in (store / f"models/toy/versions/{version}").iterdir()}
        assert {"manifest.json", "release.dsse.json", "SHA256SUMS", "PARTS"} <= names
    assert (store / "models/toy/aliases/candidate.json").exists()


def test_a_version_is_retired_only_when_no_alias_stands_for_it(local: SomeRegistry) -> None:
    local.release()
    with pytest.raises(UsageProblem, match="expected a version that no alias points to, got cand"):
        local.retire(1)
    local.release("2026-11-22T00:00:00+00:00")
    local.retire(1)
    with pytest.raises(RegistryFailed, match=r"toy version 1 was retired: .* that is kept: 2, got"):
        local.releases.find("toy", 1)
    assert local.retire(1).entry is None
    local.release("2026-11-23T00:00:00+00:00")
    local.promote(2, "candidate")
    local.retire(3)
    assert local.releases.find("toy", None).version == 2, "the newest that is kept"


def test_unknown_names_say_what_there_is(local: SomeRegistry) -> None:
    local.release()
    for reference in ("production", 7):
        with pytest.raises(
            RegistryFailed, match=r"not registered: .* got versions 1; aliases cand"
        ):
            local.releases.find("toy", reference)
    with pytest.raises(RegistryFailed, match=r"other is not registered: .* got toy registered in "):
        local.releases.find("other", None)
    with pytest.raises(RegistryFailed, match=r"toy@production is not registered"):
        local.roll_back()
    with pytest.raises(RegistryFailed, match=r"toyy is not registered: .*Did you mean toy\?"):
        local.releases.find("toyy", None)
    with pytest.raises(RegistryFailed, match=r"toy@0e1153b8bfdd .*release that was refused has"):
        local.releases.find("toy", "0e1153b8bfdd")
    with pytest.raises(RegistryFailed, match=r"toy@candidte .*Did you mean candidate\?"):
        local.releases.find("toy", "candidte")


def test_reading_a_store_that_is_not_there_creates_nothing(local: SomeRegistry) -> None:
    assert local.releases.models() == ()
    with pytest.raises(HandoffError, match="nothing registered"):
        local.releases.find("toy", None)
    assert not Path(local.stores.objects).exists()


def test_what_is_pulled_by_name_is_what_was_released(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    manifest, folder = registry.write()
    registry.register(manifest, folder)
    result = registry.pull(tmp_path / "pulled")
    assert (result.version, result.manifest) == (1, manifest.digest)
    for file in (*manifest.files, *manifest.targets[0].files):
        assert (tmp_path / "pulled" / file.path).read_bytes() == (folder / file.path).read_bytes()
    assert manifest.toolchain["torch"] == TORCH
