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

from artifacts.changes import SideBySide
from artifacts.digest import digest_file
from artifacts.errors import (
    BlessingRefused,
    HandoffError,
    PackageRefused,
    RegistryFailed,
    StoreFailed,
    UsageProblem,
)
from artifacts.evidence import Timing
from artifacts.key_pair import make_key
from artifacts.layout import ledger_key, version_key
from artifacts.ledger import LedgerEntry
from artifacts.objects import object_key
from artifacts.target import native_cpu_target
from tasks.draft import versions_held
from tests.artifacts.samples import TORCH
from tests.tasks.registering import SomeRegistry, some_registry


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
def local(tmp_path: Path) -> SomeRegistry:
    """An empty registry in a folder."""
    return some_registry(tmp_path)


def slower(speedup: float) -> tuple[Timing, ...]:
    """Return a timing of so much over eager, known to 5 %."""
    return (
        Timing(
            "batch=1 seed=0", 2e-3, 2e-3 / speedup, speedup, speedup * 0.95, speedup * 1.05, 9, 2
        ),
    )


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


def test_eight_releases_at_once_are_eight_versions_in_one_chain(registry: SomeRegistry) -> None:
    made = [registry.write(f"2026-11-21T03:00:{n:02}+00:00") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda one: registry.register(*one).version, made))
    assert sorted(versions) == list(range(1, 9))
    assert [entry.version for entry in registry.entries()] == list(range(1, 9))
    for version in versions:
        manifest = registry.releases.read("toy", registry.releases.find("toy", version)).manifest
        assert manifest.digest == made[versions.index(version)][0].digest


def test_of_four_promoters_at_once_one_wins_and_the_others_are_told_by_whom(
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
        told = list(pool.map(promote, (2, 3, 4, 5)))
    assert told.count("won") == 1
    winner = (2, 3, 4, 5)[told.index("won")]
    assert registry.releases.find("toy", "production").version == winner
    for text in told:
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


def test_a_release_can_not_move_the_alias_that_serving_machines_go_by(local: SomeRegistry) -> None:
    with pytest.raises(UsageProblem, match="a release can't move the alias production"):
        local.release(alias="production")
    local.release()
    local.promote(1, "canary")
    with pytest.raises(UsageProblem, match="a release can't move the alias canary"):
        local.release("2026-11-22T00:00:00+00:00", alias="canary")
    local.release("2026-11-22T00:00:00+00:00")
    local.promote(1, "candidate", override=True, reason="a look at the old one")
    assert local.release("2026-11-23T00:00:00+00:00") == 3, "candidate is for releases, always"


def test_a_version_that_is_slower_for_sure_is_not_promoted_unless_somebody_says_why(
    local: SomeRegistry,
) -> None:
    local.release(timings=slower(2.0))
    local.promote(1)
    local.release("2026-11-22T00:00:00+00:00", timings=slower(1.5))
    with pytest.raises(BlessingRefused, match=r"slower at batch=1 seed=0: 1\.50 times eager's"):
        local.promote(2)
    assert local.releases.find("toy", "production").version == 1
    local.promote(2, override=True, reason="the old one leaks memory")
    entry = local.entries()[-1]
    assert entry.reason == "the old one leaks memory"
    assert len(entry.overrides) == 1
    assert "slower at batch=1 seed=0" in entry.overrides[0]


def test_a_version_within_the_rules_is_promoted(local: SomeRegistry) -> None:
    local.release(timings=slower(2.0))
    local.promote(1)
    local.release("2026-11-22T00:00:00+00:00", timings=slower(1.9))
    assert local.promote("candidate").version == 2
    assert local.promote("candidate").entry is None, "it stands for that version already"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mechanics": None}, "no mechanical blessing"),
        ({"deviations": ()}, "no numeric blessing"),
        ({"timings": ()}, "its speed was not measured"),
    ],
)
def test_a_version_whose_evidence_is_not_complete_is_not_promoted(
    local: SomeRegistry, changes: dict[str, object], told: str
) -> None:
    manifest, folder = local.write()
    bare = replace(manifest.targets[0], **changes)  # type: ignore[arg-type]
    other = replace(manifest, targets=(bare,))
    (folder / "manifest.json").write_bytes(other.to_bytes())
    local.register(other, folder)
    with pytest.raises(BlessingRefused, match=told):
        local.promote(1)


def test_a_version_less_accurate_or_without_a_target_that_is_served_is_not_promoted(
    local: SomeRegistry,
) -> None:
    local.release()
    local.promote(1)
    manifest, folder = local.write("2026-11-22T00:00:00+00:00")
    worse = replace(manifest.targets[0].deviations[0], rmse_package=9e-7)
    other = replace(manifest, targets=(replace(manifest.targets[0], deviations=(worse,)),))
    local.register(other, folder)
    with pytest.raises(BlessingRefused, match=r"less accurate: an error .* times eager's"):
        local.promote(2)
    moved, folder = local.write("2026-11-23T00:00:00+00:00")
    local.register(replace(moved, targets=(replace(moved.targets[0], slug="cpu-amx"),)), folder)
    with pytest.raises(BlessingRefused, match="served now, and not part of this release"):
        local.promote(3)


def test_rolling_back_goes_back_step_by_step_and_is_an_entry_itself(local: SomeRegistry) -> None:
    for day in (21, 22, 23):
        local.promote(local.release(f"2026-11-{day}T00:00:00+00:00"))
    assert local.roll_back().version == 2
    assert local.roll_back(reason="wrong again").version == 1
    with pytest.raises(RegistryFailed, match="production of toy can't be rolled back"):
        local.roll_back()
    local.promote(3)
    assert local.roll_back().version == 1, "what was gone back over is not gone back to"
    entries = local.entries()
    assert [e.action for e in entries][-5:] == [
        "promote", "rollback", "rollback", "promote", "rollback",
    ]  # fmt: skip
    assert entries[-3].reason == "wrong again"


def test_rolling_back_to_a_version_that_never_had_the_alias_is_refused(local: SomeRegistry) -> None:
    local.promote(local.release())
    local.promote(local.release("2026-11-22T00:00:00+00:00"))
    local.release("2026-11-23T00:00:00+00:00")
    with pytest.raises(RegistryFailed, match="can't be rolled back to 3: expected a version that"):
        local.roll_back(3)
    assert local.roll_back(1).version == 1


def test_the_undo_of_an_alias_is_what_it_stood_for_before() -> None:
    def entry(action: str, version: int, alias: str = "production") -> LedgerEntry:
        plain: object = type("Entry", (), {"action": action, "version": version, "alias": alias})()
        return plain  # type: ignore[return-value]

    moves = [entry("promote", 1), entry("promote", 2), entry("release", 9, "candidate"),
             entry("promote", 3), entry("rollback", 1), entry("promote", 4)]  # fmt: skip
    assert versions_held(moves, "production") == [1, 4]


def test_a_version_is_retired_only_when_no_alias_stands_for_it(local: SomeRegistry) -> None:
    local.release()
    with pytest.raises(UsageProblem, match="expected a version that no alias stands for, got cand"):
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
    from artifacts.changes import ReleaseRequest
    from artifacts.registering import UploadJob
    from tests.tasks.registering import Here

    uploaded = Here().run(UploadJob(manifest, folder, local.stores), limit_s=60)
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


def beside(ratio: float) -> tuple[SideBySide, ...]:
    """Return a measurement of the sample's target beside what it replaces, known to 2 %."""
    slug = native_cpu_target().slug
    return (SideBySide(slug, "1x8", ratio, ratio * 0.98, ratio * 1.02, 2),)


def test_what_was_measured_in_turns_decides_and_stands_in_the_ledger(local: SomeRegistry) -> None:
    local.release(timings=slower(2.0))
    local.promote(1)
    local.release("2026-11-22T00:00:00+00:00", timings=slower(3.0))
    with pytest.raises(BlessingRefused, match=r"slower: .*: 0\.80 times as fast as what it repl"):
        local.promote(2, measured=beside(0.8))
    local.release("2026-11-23T00:00:00+00:00", timings=slower(1.0))
    local.promote(3, measured=beside(1.1))
    (told,) = local.entries()[-1].measured
    assert "1.10 times as fast as what it replaces (1.08 to 1.12), in turns on 1x8" in told


def test_speeds_of_other_numbers_of_threads_are_not_compared(local: SomeRegistry) -> None:
    local.release(timings=slower(2.0))
    local.promote(1)
    (timing,) = slower(2.0)
    local.release("2026-11-22T00:00:00+00:00", timings=(replace(timing, threads=64),))
    with pytest.raises(BlessingRefused, match="can't be compared: measured with 64 threads"):
        local.promote(2)
    assert local.promote(2, measured=beside(1.0)).version == 2
