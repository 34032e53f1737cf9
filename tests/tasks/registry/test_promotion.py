"""The rules of a promotion, in both directions: what is measured beside it goes before records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.recipe.recipe import Promotion
from handoff.artifacts.release.comparison import SideBySide, Standing
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import TargetRecord
from handoff.artifacts.release.mechanics import Mechanics
from handoff.tasks.registry.promotion import broken_rules, judge
from tests.artifacts.recipe.gpu_generations import for_gpus
from tests.artifacts.samples import sample_manifest, sample_metric, sample_target

SLUG = "cpu-avx2"
RULES = Promotion(slowdown=1.05, error_growth=2.0)
CASE = "batch=1 seed=0"


def target(speedup: float = 2.0, error: float = 1.0, **changes: object) -> TargetRecord:
    """Return a blessed target so many times as fast as eager, with an error in eager's."""
    plain = sample_target(SLUG)
    deviation = replace(plain.deviations[0], rmse_package=error, rmse_eager=1.0)
    timing = Timing(CASE, 1.0, 1 / speedup, speedup, speedup * 0.99, speedup * 1.01, 9, 2)
    blessed = replace(
        plain, deviations=(deviation,), timings=(timing,), mechanics=Mechanics(case=CASE)
    )
    return replace(blessed, **changes)  # type: ignore[arg-type]


def beside(ratio: float, was: float | None = None, now: float | None = None) -> SideBySide:
    return SideBySide(SLUG, CASE, ratio, ratio * 0.99, ratio * 1.01, 2, was, now)


@pytest.mark.parametrize(
    ("after", "before", "standing", "expected"),
    [
        (target(2.0), target(2.0), "equal", ""),
        (target(2.1), target(2.0), "equal", ""),
        (target(2.5), target(2.0), "better", "faster at batch=1"),
        (target(2.0), target(2.5), "worse", "slower at batch=1"),
        (target(error=2.5), target(error=1.0), "worse", "less accurate: an error 2.50"),
        (target(error=0.3), target(error=2.5), "better", "more accurate: an error 0.30"),
        (target(error=1.9), target(error=0.1), "equal", ""),
        (target(2.5, 9.0), target(2.0), "worse", "less accurate"),
        (
            target(metric=sample_metric(0.95)),
            target(metric=sample_metric(0.97)),
            "worse",
            "top-1 is 0.95, where it was 0.97 on the same samples: more than 0.0100 lost",
        ),
        (
            target(metric=sample_metric(0.97)),
            target(metric=sample_metric(0.95)),
            "better",
            "top-1 is 0.97, where it was 0.95",
        ),
        (target(metric=sample_metric(0.965)), target(metric=sample_metric(0.97)), "equal", ""),
        # Of other samples a value says nothing.
        (
            target(metric=sample_metric(0.5, data="other")),
            target(metric=sample_metric()),
            "equal",
            "",
        ),
        (
            target(metric=sample_metric(2.2, is_error=True)),
            target(metric=sample_metric(2.0, is_error=True)),
            "worse",
            "top-1 is 2.2, where it was 2",
        ),
        # Where the metric decides, an error says nothing.
        (target(error=900.0, metric=sample_metric()), target(), "equal", ""),
        (
            target(error=900.0, metric=sample_metric(decides=False)),
            target(),
            "worse",
            "less accurate",
        ),
        (target(mechanics=None), target(), "worse", "not tried without Python"),
        (target(), target(accepted=False, unverified="x"), "better", "built, not yet verified"),
    ],
)
def test_what_is_recorded_is_judged_both_ways_by_one_margin(
    after: TargetRecord, before: TargetRecord, standing: Standing, expected: str
) -> None:
    found, reasons = judge(after, before, RULES)
    assert found == standing
    assert any(expected in reason for reason in reasons) if expected else reasons == ()


@pytest.mark.parametrize(
    ("measured", "standing", "expected"),
    [
        ((beside(1.0),), "equal", ""),
        ((beside(1.1),), "better", "faster: cpu-avx2: 1.10 times as fast"),
        ((beside(0.9),), "worse", "slower: cpu-avx2: 0.90 times as fast"),
        # One input alone is enough to keep it back, whatever is won at another.
        ((beside(2.0), beside(0.9)), "worse", "slower: cpu-avx2: 0.90"),
        ((beside(1.0, 1.0, 2.5),), "worse", "less accurate: an error 2.50 times eager's"),
        ((beside(1.0, 2.5, 1.0),), "better", "more accurate"),
        ((beside(1.0, 1.0, 1.0),), "equal", ""),
    ],
)
def test_what_was_measured_side_by_side_goes_before_what_is_recorded(
    measured: tuple[SideBySide, ...], standing: Standing, expected: str
) -> None:
    # By their records it would be much slower; that is of another day.
    after, before = target(1.0), target(3.0)
    found, reasons = judge(after, before, RULES, measured)
    assert found == standing
    assert any(expected in reason for reason in reasons) if expected else reasons == ()


@pytest.mark.parametrize(
    ("after", "before", "measured"),
    [
        (target(2.0), target(2.5), ()),
        (target(2.0), target(2.0), ()),
        (target(error=2.5), target(), ()),
        (target(), target(), (beside(0.9),)),
        (target(), target(), (beside(1.1), beside(0.9))),
        (target(), target(), (beside(1.0, 1.0, 3.0),)),
        (target(error=3.0), target(), (beside(1.0, 1.0, 1.0),)),
        (target(timings=()), target(), ()),
    ],
)
def test_a_target_is_worse_just_where_a_release_of_it_breaks_a_rule(
    after: TargetRecord, before: TargetRecord, measured: tuple[SideBySide, ...]
) -> None:
    wanted, replaced = (
        replace(sample_manifest(one), recipe=replace(sample_manifest().recipe, promotion=RULES))
        for one in (after, before)
    )
    broken = broken_rules(wanted, replaced, measured)
    standing, reasons = judge(after, before, RULES, measured)
    assert (standing == "worse") == bool(broken)
    assert set(broken) == set(reasons) or not broken


def test_a_measurement_tells_the_errors_where_it_has_them() -> None:
    assert "its error" not in str(beside(1.0))
    assert str(beside(1.0, 1.5, 1.25)).endswith("; its error is 1.25 times eager's, was 1.50")


@pytest.mark.parametrize(
    ("after", "before", "expected"),
    [
        (for_gpus(80, untried=(90,)), for_gpus(90, untried=(80,)), "9.0"),
        (for_gpus(80, untried=(90,)), for_gpus(80, 90), "9.0"),
        (for_gpus(90, untried=(80,)), for_gpus(90, untried=(80,)), ""),
        (for_gpus(80, 90), for_gpus(90, untried=(80,)), ""),
        (for_gpus(90), for_gpus(90), ""),
    ],
)
def test_gpus_that_are_served_now_are_not_lost_by_a_promotion(
    after: TargetRecord, before: TargetRecord, expected: str
) -> None:
    """Machines with such a GPU would find nothing that fits them."""
    blessed = replace(after, mechanics=Mechanics(case=CASE))
    broken = broken_rules(sample_manifest(blessed), sample_manifest(before))
    lost = f"{after.slug}: verified for compute capability {expected} now, and not in this release"
    assert broken == ((lost,) if expected else ())
    assert judge(blessed, before, RULES)[0] == ("worse" if expected else "equal")
