"""A search's variants: what becomes of them where the race between them fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from artifacts.errors import StepCrashed
from artifacts.evidence import Candidate, choose
from artifacts.steps import RaceLap, RaceResult
from flows import variants

PLAIN = Candidate("plain", accepted=True)
FREEZING = Candidate("freezing", accepted=True)
LATE = Candidate("channels-last", accepted=False, reasons=("the search's 60 s were over",))
TRIED = (PLAIN, FREEZING, LATE)


def rate(monkeypatch: pytest.MonkeyPatch, race: Any) -> tuple[Candidate, ...]:
    monkeypatch.setattr(variants, "race", race)
    lanes = SimpleNamespace(runner=lambda target: target)
    reference = SimpleNamespace(file=Path("reference"))
    work: Any = SimpleNamespace(
        lanes=lanes, target=SimpleNamespace(slug="cpu-avx2"), reference=reference
    )
    accepted: Any = tuple(
        SimpleNamespace(folder=Path(one.name), told=one) for one in (PLAIN, FREEZING)
    )
    return variants.rate(work, accepted, TRIED)


def test_the_fastest_variant_of_a_race_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    laps = tuple(RaceLap((1 / x,), (x,), (x,), (x,)) for x in (1.0, 2.0))
    rated = rate(monkeypatch, lambda *_: RaceResult(laps))
    assert choose(rated).name == "freezing"
    assert rated[2] == LATE


def test_a_race_that_fails_leaves_the_plain_package_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object) -> RaceResult:
        raise StepCrashed(
            "the step race of cpu-avx2 ended", expected="a result", got="SIGSEGV", remedy="Look"
        )

    rated = rate(monkeypatch, crash)
    assert choose(rated) is PLAIN
    assert (rated[0], rated[2]) == (PLAIN, LATE)
    assert not rated[1].accepted
    (reason,) = rated[1].reasons
    assert "the race of the variants failed" in reason
    assert "SIGSEGV" in reason
