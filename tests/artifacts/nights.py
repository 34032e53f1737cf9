"""Nights for tests: a month of one model that was mended twice, with all that can happen."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from handoff.artifacts.night import Night, NightRow, Outcome
from handoff.artifacts.release.comparison import (
    Comparison,
    InterleavedTiming,
    OutputErrors,
    PackageFigures,
)
from handoff.artifacts.release.interval import Interval

FIRST = datetime(2026, 10, 20, 2, 0, tzinfo=UTC)


def figures(version: int, speed: float, target: str = "cpu-avx512") -> PackageFigures:
    return PackageFigures(
        target=target,
        version=version,
        basis="measured",
        torch="2.15.0",
        rmse_ratio=1.0 + 0.02 * version,
        speed=Interval(speed, speed * 0.97, speed * 1.04),
        size_bytes=93_700_000 + 400_000 * version,
        compile_s=27.0 + version,
    )


def comparison(
    old: PackageFigures, new: PackageFigures, verdict: str = "equal", reason: str = ""
) -> Comparison:
    assert old.speed is not None
    assert new.speed is not None
    ratio = new.speed.value / old.speed.value
    heat = InterleavedTiming(
        case="batch=64 seed=0", rounds=40, threads=2, eager_s=0.2, old_s=0.2 / old.speed.value,
        new_s=0.2 / new.speed.value, new_to_old=Interval(ratio, ratio * 0.98, ratio * 1.03),
        new_to_eager=new.speed, old_to_eager=old.speed,
    )  # fmt: skip
    outputs = (OutputErrors("logits", 64_000, 1e-7, 1.01e-7, 1.02e-7, 3e-7),)
    reasons = (reason or f"{old.target}: {ratio:.2f} times as fast as what it replaces",)
    return Comparison(old.target, old, new, outputs, (heat,), verdict, reasons)  # type: ignore[arg-type]


def night(day: int, *rows: NightRow, hours: float = 1.2) -> Night:
    started = FIRST + timedelta(days=day)
    ordered = tuple(sorted(rows, key=lambda row: row.model))
    return Night(
        date=started.date().isoformat(),
        started=started.isoformat(),
        ended=(started + timedelta(hours=hours)).isoformat(),
        toolchain={"torch": "2.15.0", "compiler": "g++ 12.2.0"},
        rows=ordered,
    )


def unchanged(served: PackageFigures, model: str = "resnet18") -> NightRow:
    recorded = replace(served, basis="recorded")
    return NightRow(model, "unchanged", old=served.version, seconds=0.8, served=(recorded,))


def month() -> tuple[Night, ...]:
    """Thirty nights: 12 and 13 are missing, 9 failed, a build was kept at 17, two were replaced."""
    sixth, seventh, ninth = figures(6, 1.41), figures(7, 1.58), figures(9, 1.71)
    nights = []
    for day in range(30):
        served = sixth if day < 6 else seventh if day < 22 else ninth
        row = unchanged(served)
        if day in (12, 13):
            continue
        if day == 6:
            row = compared("replaced", sixth, seventh, "better")
        elif day == 9:
            row = NightRow("resnet18", "failed", old=7, why="g++ ended by signal 9", seconds=4.0)
        elif day == 17:
            row = compared("kept", seventh, figures(8, 1.2), "worse")
        elif day == 22:
            row = compared("replaced", seventh, ninth, "better")
        nights.append(night(day, row))
    return tuple(nights)


def compared(
    outcome: Outcome,
    old: PackageFigures,
    new: PackageFigures,
    verdict: str,
    model: str = "resnet18",
) -> NightRow:
    word = {"better": "faster", "worse": "slower"}.get(verdict, "equal")
    one = comparison(old, new, verdict, f"{word}: {old.target}: by more than the rules let it be")
    return NightRow(
        model, outcome, old.version, new.version, comparisons=(one,), seconds=151.0,
    )  # fmt: skip


def busy_night() -> Night:
    """A night on which everything happened at once."""
    old, new = figures(6, 1.41), figures(7, 1.58)
    two = compared("kept", old, figures(7, 1.2), "worse", "recommender")
    gpu = replace(figures(6, 3.2, "cuda-sm90"), basis="recorded", torch="2.14.0", why="no GPU here")
    second = comparison(gpu, replace(figures(7, 3.1, "cuda-sm90"), basis="recorded"))
    return night(
        31,
        compared("replaced", old, new, "better"),
        replace(two, comparisons=(*two.comparisons, replace(second, heats=(), outputs=()))),
        NightRow("bert", "crashed", old=3, why="the process was ended by signal 9", seconds=300.0),
        NightRow("gpt2", "failed", old=2, why="s3://models did not answer", seconds=9.0),
        NightRow(
            "whisper-encoder", "refused", old=11, seconds=88.0,
            why="cpu-avx512: 12 of 64000 elements lie outside atol 1e-06 and rtol 1e-05: the "
            "largest difference is 0.00391, which would need rtol 0.0021 | <script>alert(1)",
        ),
        NightRow("unet", "skipped", old=1, why="released before deliveries were kept", seconds=0.1),
        *[unchanged(figures(4, 1.3), f"model-{letter}") for letter in "abcdefgh"],
    )  # fmt: skip
