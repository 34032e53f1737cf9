"""Promote and roll back: what may become what is served, and how it goes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import (
    BlessingRefused,
    RegistryFailed,
    UsageProblem,
)
from handoff.artifacts.recipe.recipe import Promotion
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.mechanics import Mechanics
from handoff.tasks.registry.draft import alias_history
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.artifacts.samples import sample_target, write_release
from tests.tasks.registry.registering import SomeRegistry


def slower(speedup: float) -> tuple[Timing, ...]:
    """Return a timing of so much over eager, known to 5 %."""
    return (
        Timing(
            "batch=1 seed=0", 2e-3, 2e-3 / speedup, speedup, speedup * 0.95, speedup * 1.05, 9, 2
        ),
    )


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


def test_a_version_that_takes_less_is_promoted_only_if_it_is_meant_to(local: SomeRegistry) -> None:
    local.release()
    local.promote(1)
    manifest, folder = local.write("2026-11-22T00:00:00+00:00")
    (name, limits), *_ = manifest.signature.dimensions.items()
    shorter = {**manifest.signature.dimensions, name: Dimension(limits.min, limits.max - 1)}
    other = replace(manifest, signature=replace(manifest.signature, dimensions=shorter))
    (folder / "manifest.json").write_bytes(other.to_bytes())
    local.register(other, folder)
    reason = f"one that refuses those with {name} of {limits.max}: it takes"
    with pytest.raises(BlessingRefused, match=rf"{reason}.*--narrower"):
        local.promote(2)
    with pytest.raises(BlessingRefused, match=reason):
        local.promote(2, override=True, reason="another rule is another matter")
    assert local.releases.find("toy", "production").version == 1
    local.promote(2, narrower=True)
    assert local.entries()[-1].overrides == (
        f"narrower: it refuses those with {name} of {limits.max}: it takes {limits.min} to "
        f"{limits.max - 1}",
    )
    assert local.promote(1).version == 1, "the wider one may go back as it came"


@pytest.mark.parametrize("allowed", [True, False])
def test_what_an_emulator_alone_has_run_is_promoted_as_the_recipe_says_and_the_ledger_tells(
    local: SomeRegistry, allowed: bool
) -> None:
    manifest, folder = local.write()
    emulated = replace(manifest.targets[0], timings=(), emulated="run by an emulator")
    recipe = replace(manifest.recipe, promotion=Promotion(emulated=allowed))
    other = replace(manifest, targets=(emulated,), recipe=recipe)
    (folder / "manifest.json").write_bytes(other.to_bytes())
    local.register(other, folder)
    if not allowed:
        with pytest.raises(BlessingRefused, match="verified under emulation alone"):
            local.promote(1)
        return
    local.promote(1)
    (text,) = local.entries()[-1].measured
    assert text == f"{emulated.slug}: verified under emulation: run by an emulator"


def test_a_package_that_one_of_its_gpus_has_run_is_promoted_and_the_ledger_tells_of_the_other(
    local: SomeRegistry, tmp_path: Path
) -> None:
    folder = local.root / "several"
    ran = replace(for_gpus(90, untried=(80,)), mechanics=Mechanics(case="batch=1"))
    manifest = write_release(folder, sample_target("cpu-avx2"), ran)
    cpu = replace(manifest.targets[0], mechanics=ran.mechanics)
    manifest = replace(manifest, targets=(cpu, manifest.targets[1]), created="2026-11-22")
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    local.register(manifest, folder)
    local.promote(1)
    text = f"{BOTH}: not yet verified for compute capability 8.0"
    assert local.entries()[-1].measured == (text,)
    written = Path(local.stores.objects).rglob("*")
    assert not [path for path in written if "+" in path.name], "a store's keys have no target"
    pulled = local.pull(tmp_path / "pulled", target=BOTH)
    assert (pulled.target, (tmp_path / "pulled" / BOTH / "model.pt2").is_file()) == (BOTH, True)


def test_a_package_that_none_of_its_gpus_has_run_is_not_promoted(local: SomeRegistry) -> None:
    folder = local.root / "several"
    waiting = for_gpus(80, 90, unverified="no GPU here")
    manifest = replace(write_release(folder, waiting), created="2026-11-22")
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    local.register(manifest, folder)
    with pytest.raises(BlessingRefused, match=r"as long as cuda-sm80\+sm90 is not yet"):
        local.promote(1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mechanics": None}, "not tried without Python"),
        ({"deviations": ()}, "its numbers were not verified"),
        ({"timings": ()}, "its speed was not measured"),
    ],
)
def test_a_version_whose_evidence_is_not_complete_is_not_promoted(
    local: SomeRegistry, changes: dict[str, object], reason: str
) -> None:
    manifest, folder = local.write()
    bare = replace(manifest.targets[0], **changes)  # type: ignore[arg-type]
    other = replace(manifest, targets=(bare,))
    (folder / "manifest.json").write_bytes(other.to_bytes())
    local.register(other, folder)
    with pytest.raises(BlessingRefused, match=reason):
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
    assert alias_history(moves, "production") == [1, 4]


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
    (text,) = local.entries()[-1].measured
    assert "1.10 times as fast as what it replaces (1.08 to 1.12), in turns on 1x8" in text


def test_speeds_of_other_numbers_of_threads_are_not_compared(local: SomeRegistry) -> None:
    local.release(timings=slower(2.0))
    local.promote(1)
    (timing,) = slower(2.0)
    local.release("2026-11-22T00:00:00+00:00", timings=(replace(timing, threads=64),))
    with pytest.raises(BlessingRefused, match="can't be compared: measured with 64 threads"):
        local.promote(2)
    assert local.promote(2, measured=beside(1.0)).version == 2
