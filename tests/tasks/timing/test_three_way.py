"""Three ways: what runs here is measured, what doesn't is as recorded, and nothing is guessed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.recipe import Promotion, Recipe
from handoff.artifacts.recipe.tolerance import Deviation
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.comparison import Comparison
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import TargetRecord
from handoff.artifacts.release.mechanics import Mechanics
from handoff.tasks.timing import race, three_way
from handoff.tasks.timing.messages import ThreeWayJob
from handoff.tasks.verify.loading import Tensors, open_shared_library
from tests.artifacts.samples import sample_metric
from tests.tasks.built_release import BuiltRelease

pytestmark = pytest.mark.compile

EVIDENCE = (Deviation(0, "batch=1 seed=0", "float32", 3, 3e-7, 1e-6, 8e-8, 7e-8, 0.5, 0.0),)
BUDGET_S = race._BUDGET_S
# Wide, so that a busy machine changes no verdict.
RULES = Recipe(promotion=Promotion(slowdown=3.0, error_growth=4.0))


@pytest.fixture(autouse=True)
def _short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Race as few rounds as there may be: most tests are about what is found besides the speed."""
    monkeypatch.setattr(race, "_BUDGET_S", 0.0)


def timing(speedup: float) -> Timing:
    return Timing(
        "batch=1 seed=0", 2e-3, 2e-3 / speedup, speedup, speedup * 0.95, speedup * 1.05, 9, 2
    )


def record(built: BuiltRelease, *, speedup: float = 2.0) -> TargetRecord:
    """Return the target's record with the evidence that a release has."""
    own = built.manifest.targets[0]
    return replace(
        own, deviations=EVIDENCE, mechanics=Mechanics(case="batch=1"), timings=(timing(speedup),),
        compile_s=12.5, size_bytes=sum(file.size_bytes for file in own.files),
    )  # fmt: skip


def job(built: BuiltRelease, **changes: object) -> ThreeWayJob:
    plain = ThreeWayJob(
        target=built.slug,
        old=built.folder,
        new=built.folder,
        before=record(built),
        after=record(built),
        staging=built.reference.parent / "staging",
        reference=built.reference,
        recipe=RULES,
        outputs=("scores",),
        old_version=3,
        new_version=4,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_same_package_is_equal_and_everything_is_measured(built_release: BuiltRelease) -> None:
    found = three_way.run(job(built_release))
    assert (found.verdict, found.is_measured) == ("equal", True)
    (scores,) = found.outputs
    assert scores.output == "scores"
    assert scores.apart == 0.0
    assert scores.rmse_eager > 0
    assert scores.rmse_new is not None
    assert scores.rmse_new == scores.rmse_old
    assert scores.rmse_new / scores.rmse_eager == pytest.approx(found.new.rmse_ratio, rel=0.05)
    assert [heat.case for heat in found.heats] == ["batch=1 seed=0", "batch=2048 seed=0"]
    for heat in found.heats:
        assert heat.rounds >= 15
        assert heat.new_to_old is not None
        assert heat.new_to_old.low <= heat.new_to_old.value <= heat.new_to_old.high
        assert heat.new_to_eager is not None
        assert heat.old_to_eager is not None
    assert found.new.speed == found.heats[-1].new_to_eager
    assert (found.old.version, found.new.version) == (3, 4)
    assert found.new.size_bytes == record(built_release).size_bytes
    assert len(found.side_by_side) == 2
    assert "its error is" in found.reasons[0]
    assert from_plain(Comparison, to_plain(found)) == found


def test_a_package_for_another_torch_is_as_its_record_has_it(built_release: BuiltRelease) -> None:
    before = record(built_release, speedup=1.9)
    old = replace(before, fit=Fit(cpu_flags=(), torch="2.11.0"))
    found = three_way.run(job(built_release, before=old))
    assert not found.is_measured
    assert (found.old.basis, found.new.basis) == ("recorded", "measured")
    assert "it needs torch 2.11.0, and this is torch" in found.old.why
    assert found.old.torch == "2.11.0"
    assert found.old.rmse_ratio == pytest.approx(8 / 7)
    assert found.old.speed is not None
    assert found.old.speed.value == 1.9
    assert found.outputs[0].rmse_old is None
    assert found.outputs[0].rmse_new is not None
    assert found.outputs[0].apart is None
    assert all(heat.old_s is None and heat.new_to_old is None for heat in found.heats)
    assert all(heat.new_to_eager is not None for heat in found.heats)
    assert found.side_by_side == ()
    assert found.verdict == "equal"
    assert "by its record: it needs torch 2.11.0" in found.reasons[0]


@pytest.mark.parametrize(
    ("was", "now", "verdict", "reason"),
    [(8.0, 2.0, "worse", "slower at batch=1"), (2.0, 8.0, "better", "faster at batch=1")],
)
def test_what_can_not_be_run_is_judged_by_the_recorded_speed_over_eager(
    built_release: BuiltRelease, was: float, now: float, verdict: str, reason: str
) -> None:
    before = replace(record(built_release, speedup=was), fit=Fit(cpu_flags=(), torch="2.11.0"))
    found = three_way.run(
        job(built_release, before=before, after=record(built_release, speedup=now))
    )
    assert found.verdict == verdict
    assert reason in found.reasons[0]


def test_a_package_whose_files_are_gone_is_as_its_record_has_it(
    built_release: BuiltRelease,
) -> None:
    found = three_way.run(job(built_release, old=None, old_missing="the store has lost it"))
    assert (found.old.basis, found.old.why) == ("recorded", "the store has lost it")
    assert found.verdict == "equal"


def test_where_neither_runs_nothing_is_measured_and_the_records_decide(
    built_release: BuiltRelease,
) -> None:
    elsewhere = replace(record(built_release), fit=Fit(cpu_flags=("a_flag_of_tomorrow",), torch=""))
    found = three_way.run(job(built_release, before=elsewhere, after=elsewhere))
    assert (found.old.basis, found.new.basis) == ("recorded", "recorded")
    assert found.heats == ()
    assert found.verdict == "equal"
    assert "a_flag_of_tomorrow" in found.new.why
    unverified = replace(elsewhere, accepted=False, unverified="nothing was run")
    found = three_way.run(job(built_release, before=elsewhere, after=unverified))
    assert (found.verdict, found.reasons) == (
        "worse", (f"{built_release.slug}: built, not yet verified",),
    )  # fmt: skip


def drift(
    monkeypatch: pytest.MonkeyPatch, wrong: Path, *, by: float = 0.0, fails: bool = False
) -> None:
    """Make the package in `wrong` compute something else, or fail."""

    def open_wrong(path: Path, device: str = "cpu") -> three_way.Call:
        library = open_shared_library(path, device)
        if wrong not in path.parents:
            return library

        def call(inputs: Tensors) -> Tensors:
            if fails:
                raise RuntimeError("a kernel gave up")
            return tuple(tensor + by for tensor in library(inputs))

        return call

    monkeypatch.setattr(three_way, "open_shared_library", open_wrong)


@pytest.fixture
def copy(built_release: BuiltRelease, tmp_path: Path) -> Path:
    """A second release folder with the same package."""
    return Path(shutil.copytree(built_release.folder, tmp_path / "other"))


def test_a_new_package_with_wrong_numbers_is_worse_and_the_reverse_is_better(
    built_release: BuiltRelease, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(monkeypatch, copy, by=1e-3)
    found = three_way.run(job(built_release, new=copy))
    assert found.verdict == "worse"
    assert "lie outside atol" in found.reasons[0]
    assert found.outputs[0].apart == pytest.approx(1e-3, rel=0.01)
    (scores,) = found.outputs
    assert scores.rmse_new is not None
    assert scores.rmse_old is not None
    assert scores.rmse_new > 100 * scores.rmse_eager > scores.rmse_old
    assert any("less accurate" in reason for reason in found.reasons)
    mended = three_way.run(job(built_release, old=copy))
    assert mended.verdict == "better"
    assert any("more accurate" in reason for reason in mended.reasons)


def test_a_package_that_fails_here_is_told_and_never_called_equal(
    built_release: BuiltRelease, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(monkeypatch, copy, fails=True)
    found = three_way.run(job(built_release, new=copy))
    assert found.verdict == "worse"
    assert "it fails at batch=1 seed=0: a kernel gave up" in found.reasons[0]
    assert found.new.basis == "recorded"
    assert found.outputs[0].apart is None
    mended = three_way.run(job(built_release, old=copy))
    assert mended.verdict == "better"
    assert "what it replaces is wrong here" in mended.reasons[0]


def test_a_package_that_sleeps_is_slower_for_sure(
    built_release: BuiltRelease, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_slow(path: Path, device: str = "cpu") -> three_way.Call:
        library = open_shared_library(path, device)
        if copy not in path.parents:
            return library
        return lambda inputs: (torch.randn(1 << 22), library(inputs))[1]

    monkeypatch.setattr(three_way, "open_shared_library", open_slow)
    monkeypatch.setattr(race, "_BUDGET_S", BUDGET_S)
    found = three_way.run(job(built_release, new=copy))
    assert found.verdict == "worse"
    # How many times as slow, no busy machine tells alike; that it is, every one.
    assert found.reasons[0].startswith(f"slower: {built_release.slug}: 0.0")
    quicker = three_way.run(job(built_release, old=copy))
    assert quicker.verdict == "better"
    assert quicker.reasons[0].startswith(f"faster: {built_release.slug}: ")
    assert "not known" not in found.reasons[0] + quicker.reasons[0]


def test_what_a_metric_decides_about_is_not_wrong_by_a_tolerance(
    built_release: BuiltRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded(path: Path, device: str) -> object:
        library = open_shared_library(path, device)
        return lambda inputs: tuple(output * 1.01 for output in library(inputs))

    def numberless(path: Path, device: str) -> object:
        library = open_shared_library(path, device)
        return lambda inputs: tuple(output * torch.nan for output in library(inputs))

    monkeypatch.setattr(three_way, "open_shared_library", rounded)
    assert three_way.run(job(built_release)).verdict == "worse"
    decided = replace(record(built_release), metric=sample_metric())
    assert three_way.run(job(built_release, before=decided, after=decided)).verdict == "equal"
    monkeypatch.setattr(three_way, "open_shared_library", numberless)
    assert three_way.run(job(built_release, before=decided, after=decided)).verdict == "worse"
