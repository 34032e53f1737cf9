"""What to do about a refusal goes by what was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from handoff.artifacts.recipe.tolerance import EXACT
from handoff.artifacts.release.culprit import Culprit
from handoff.artifacts.release.manifest import TargetRecord
from handoff.artifacts.release.mechanics import Mechanics, Replay
from handoff.artifacts.release.remedy import next_step
from tests.artifacts.samples import sample_manifest, sample_metric, sample_target

REFUSED = replace(sample_target("cpu-avx2"), accepted=False, reasons=("why",))
(RIGHT,) = REFUSED.deviations
WRONG = replace(RIGHT, reasons=("outside",))
SPECIAL = replace(WRONG, special=True)
BROKEN = sample_metric(0.9)


def wrong_by(**named: Any) -> TargetRecord:
    return replace(REFUSED, deviations=(WRONG,), culprit=Culprit(**named))


@pytest.mark.parametrize(
    ("target", "step"),
    [
        (replace(REFUSED, deviations=(RIGHT, WRONG, SPECIAL)), "wasn't found: release it with"),
        (replace(REFUSED, deviations=(RIGHT, SPECIAL)), "declare narrower ranges"),
        (wrong_by(operator="div", where="bins.py:10"), "Write div at bins.py:10 in another way"),
        (wrong_by(operator="div", script="repeat.py"), "Write div in another way. The compiler"),
        (wrong_by(operator="linear", options=("freezing",)), "Take the option freezing out"),
        (wrong_by(options=("a", "b")), "Take the options a, b out"),
        (wrong_by(made_by="int8-linear"), "Leave the pass int8-linear out of the recipe"),
        (wrong_by(lacks_room=True), "a tolerance that has room"),
        (wrong_by(), "wasn't found: release it with"),
        (REFUSED, "Its numbers were not refused"),
        (replace(REFUSED, crashed=True), "Nothing was shown to be wrong"),
        (replace(REFUSED, metric=BROKEN), "agree on another max_drop"),
        (replace(REFUSED, metric=sample_metric(0.96, enough=2000)), "as many samples as"),
        (replace(REFUSED, metric=sample_metric(0.96)), "agree on another max_drop"),
        (replace(REFUSED, metric=sample_metric(max_drop=None)), "Agree on a max_drop"),
        (replace(REFUSED, metric=sample_metric(decides=False)), "Its numbers were not refused"),
    ],
)
def test_the_remedy_goes_by_the_cause(target: TargetRecord, step: str) -> None:
    assert step in next_step(replace(sample_manifest(), targets=(target,)))


def test_what_is_wrong_is_looked_at_before_what_crashed() -> None:
    wrong = replace(REFUSED, slug="cpu-avx512", deviations=(WRONG,))
    crashed = replace(REFUSED, crashed=True)
    manifest = replace(sample_manifest(), targets=(crashed, wrong))
    assert "wasn't found: release it with" in next_step(manifest)


def test_an_unsound_delivery_is_mended_where_it_comes_from() -> None:
    manifest = replace(sample_manifest(), verdict="unsound", targets=(REFUSED,))
    assert "deliver the model again" in next_step(manifest)


def test_what_is_accepted_needs_nothing() -> None:
    assert next_step(sample_manifest()) == ""


def test_rounding_that_differs_from_call_to_call_asks_for_room_where_a_recipe_left_none() -> None:
    replay = Replay("model.so", 1, 1, 3, 50, 24, 24, 5e-4)
    target = replace(REFUSED, mechanics=Mechanics("batch=1", (replay,)))
    manifest = replace(sample_manifest(), targets=(target,))
    exact = replace(manifest.recipe, tolerance={"float32": EXACT})
    assert "leave [tolerance.float32] out" in next_step(replace(manifest, recipe=exact))
    # Where the usual room was left, more of it is no remedy.
    usual = replace(manifest.recipe, tolerance={})
    assert "tolerance" not in next_step(replace(manifest, recipe=usual))
