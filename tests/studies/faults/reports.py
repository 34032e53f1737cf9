"""Public reports of silent wrong results that show in torch 2.15, as models that are delivered.

Each is there twice where that is possible: with a declared range within which it can be served
wrong, and so must be refused, and with one that excludes it, and so must be released.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.studies.faults import report_models as rm
from tests.studies.faults.cases import Inputs, Judge, Judged, Report
from tests.studies.faults.neighbours import NEIGHBOURS


def _whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high + 1, shape).to(dtype)


def _between(low: float, high: float, *shape: int) -> Tensor:
    return torch.rand(shape) * (high - low) + low


def _with_nan(*shape: int) -> Tensor:
    return torch.where(torch.rand(shape) < 0.1, torch.nan, torch.randn(shape))


_I8, _U8 = torch.int8, torch.uint8


def _bytes(low: int, high: int, dtype: torch.dtype) -> Inputs:
    """Return rows of 8-bit numbers in which both ends occur."""
    drawn = _whole(low, high, 6, 64, dtype=dtype)
    drawn[:, 5], drawn[:, 40] = low, high
    return {"samples": drawn}


_MULTIPLES = torch.arange(1, 25).expand(6, 24)

_PUBLIC: tuple[Report, ...] = (
    Report(
        name="min-max normalisation of bytes",
        issue=191499,
        build=rm.MinMaxNormalised,
        example=lambda: {"image": _whole(0, 255, 6, 32, 32, dtype=_U8)},
        shows=lambda: {"image": _whole(40, 249, 6, 32, 32, dtype=_U8)},
        ranges={"image": (0, 255)},
        must="refused",
        operator="aten.amin",
        question="rows that lie in a part of the range that holds no 0",
    ),
    Report(
        name="largest of signed bytes",
        issue=191499,
        build=lambda: rm.Extreme("amax"),
        example=lambda: _bytes(-128, 127, _I8),
        shows=lambda: _bytes(-120, -3, _I8),
        ranges={"samples": (-128, 127)},
        must="refused",
        operator="aten.amax",
        question="rows of negative numbers only",
    ),
    Report(
        name="largest of signed bytes that are never negative",
        issue=191499,
        build=lambda: rm.Extreme("amax"),
        example=lambda: _bytes(0, 127, _I8),
        shows=lambda: _bytes(3, 90, _I8),
        ranges={"samples": (0, 127)},
        must="released",
    ),
    Report(
        name="smallest of signed bytes",
        issue=191499,
        build=lambda: rm.Extreme("amin"),
        example=lambda: _bytes(-128, 127, _I8),
        shows=lambda: _bytes(5, 100, _I8),
        ranges={"samples": (-128, 127)},
        must="refused",
        operator="aten.amin",
        question="rows of positive numbers only",
    ),
    Report(
        name="smallest of signed bytes that are never positive",
        issue=191499,
        build=lambda: rm.Extreme("amin"),
        example=lambda: _bytes(-128, 0, _I8),
        shows=lambda: _bytes(-100, -2, _I8),
        ranges={"samples": (-128, 0)},
        must="released",
    ),
    Report(
        name="place of the smallest byte",
        issue=191499,
        build=lambda: rm.Extreme("argmin"),
        example=lambda: _bytes(0, 255, _U8),
        shows=lambda: _bytes(40, 249, _U8),
        ranges={"samples": (0, 255)},
        must="refused",
        operator="aten.argmin",
        question="rows that lie in a part of the range that holds no 0",
    ),
    Report(
        name="largest byte",
        issue=191499,
        build=lambda: rm.Extreme("amax"),
        example=lambda: _bytes(0, 255, _U8),
        shows=lambda: _bytes(40, 249, _U8),
        ranges={"samples": (0, 255)},
        must="released",
    ),
    Report(
        name="cast to half and back",
        issue=185337,
        build=lambda: rm.SurvivesCast(torch.float16),
        example=lambda: {"x": torch.randn(6, 16)},
        shows=lambda: {"x": torch.randn(6, 16)},
        must="refused",
        operator="aten.",
        question="any draw, against a float64 run that keeps the model's own casts",
    ),
    Report(
        name="whole numbers cast to half and back",
        issue=185337,
        build=lambda: rm.SurvivesCast(torch.float16),
        example=lambda: {"x": _whole(-2048, 2048, 6, 16)},
        shows=lambda: {"x": _whole(-2048, 2048, 6, 16)},
        ranges={"x": (-2048, 2048)},
        must="released",
    ),
    Report(
        name="bins of a width of 0.3",
        issue=197895,
        build=lambda: rm.Binned(0.3),
        example=lambda: {"price": _between(0, 8, 6, 24)},
        shows=lambda: {"price": _MULTIPLES * 0.3},
        ranges={"price": (0, 8)},
        must="refused",
        operator="aten.floor_divide",
        question="multiples of the divisor, and one ulp beside them",
    ),
    Report(
        name="within a bin of a width of 0.3",
        issue=197895,
        build=lambda: rm.Binned(0.3),
        example=lambda: {"price": _between(0.31, 0.59, 6, 24)},
        shows=lambda: {"price": _between(0.31, 0.59, 6, 24)},
        ranges={"price": (0.31, 0.59)},
        must="released",
    ),
    Report(
        name="phase of a late time",
        issue=198057,
        build=rm.Phase,
        example=lambda: {"time": _between(0, 1e6, 6, 24), "period": _between(0.5, 2, 6, 24)},
        shows=lambda: {"time": _between(9e4, 1e6, 6, 24), "period": _between(0.5, 2, 6, 24)},
        ranges={"time": (0, 1e6), "period": (0.5, 2)},
        must="refused",
        operator="aten.remainder",
        question="large quotients: one input large, the other one not",
    ),
    Report(
        name="phase with an infinite period",
        issue=198057,
        build=rm.Phase,
        example=lambda: {"time": torch.randn(6, 24), "period": torch.randn(6, 24)},
        shows=lambda: {
            "time": torch.randn(6, 24),
            "period": torch.where(_MULTIPLES % 3 == 0, torch.inf, 1.5),
        },
        must="refused",
        operator="aten.remainder",
        question="infinity in one input alone",
    ),
    Report(
        name="phase within the first period",
        issue=198057,
        build=rm.Phase,
        example=lambda: {"time": _between(0, 0.45, 6, 24), "period": _between(0.5, 2, 6, 24)},
        shows=lambda: {"time": _between(0, 0.45, 6, 24), "period": _between(0.5, 2, 6, 24)},
        ranges={"time": (0, 0.45), "period": (0.5, 2)},
        must="released",
    ),
    Report(
        name="nearest neighbours at a factor near 1",
        issue=198201,
        build=lambda: rm.Enlarged(1.1),
        example=lambda: {"x": torch.randn(6, 4, 6, 6)},
        shows=lambda: {"x": torch.randn(6, 4, 6, 6)},
        must="refused",
        operator="aten.upsample_nearest2d",
        question="any draw",
    ),
    Report(
        name="nearest neighbours at a factor of 3",
        issue=198201,
        build=lambda: rm.Enlarged(3.0),
        example=lambda: {"x": torch.randn(6, 4, 6, 6)},
        shows=lambda: {"x": torch.randn(6, 4, 6, 6)},
        must="released",
    ),
    Report(
        name="window that is emptied after it was filled",
        issue=198096,
        build=lambda: rm.RollingWindow(clears=True),
        example=lambda: {"window": torch.randn(6, 8, 4), "newest": torch.randn(6, 2, 4)},
        shows=lambda: {"window": torch.randn(6, 8, 4), "newest": torch.randn(6, 2, 4)},
        must="refused",
        operator="aten.slice_scatter",
        question="any draw",
    ),
    Report(
        name="window that is filled",
        issue=198096,
        build=lambda: rm.RollingWindow(clears=False),
        example=lambda: {"window": torch.randn(6, 8, 4), "newest": torch.randn(6, 2, 4)},
        shows=lambda: {"window": torch.randn(6, 8, 4), "newest": torch.randn(6, 2, 4)},
        must="released",
    ),
    Report(
        name="half mantissas with exponents of float32",
        issue=197091,
        build=rm.Rescaled,
        example=lambda: {"mantissa": torch.randn(6, 12).half(), "exponent": torch.randn(6, 12)},
        shows=lambda: {"mantissa": torch.randn(6, 12).half(), "exponent": torch.randn(6, 12)},
        ranges={"mantissa": (-8, 8), "exponent": (-8, 8)},
        must="refused",
        operator="aten.ldexp",
        question="any draw: the output's dtype",
    ),
    Report(
        name="mantissas with whole exponents",
        issue=197091,
        build=rm.Rescaled,
        example=lambda: {"mantissa": torch.randn(6, 12), "exponent": _whole(-8, 8, 6, 12)},
        shows=lambda: {"mantissa": torch.randn(6, 12), "exponent": _whole(-8, 8, 6, 12)},
        ranges={"exponent": (-8, 8)},
        must="released",
    ),
    Report(
        name="smallest byte and its place",
        issue=191499,
        build=rm.MinimumAndPlace,
        example=lambda: _bytes(0, 255, _U8),
        shows=lambda: _bytes(40, 249, _U8),
        ranges={"samples": (0, 255)},
        must="refused",
        operator="aten.min",
        question="rows that lie in a part of the range that holds no 0",
    ),
    Report(
        name="smallest of 16 bits and its place",
        issue=191499,
        build=rm.MinimumAndPlace,
        example=lambda: {"samples": _whole(0, 255, 6, 64, dtype=torch.int16)},
        shows=lambda: {"samples": _whole(40, 249, 6, 64, dtype=torch.int16)},
        ranges={"samples": (0, 255)},
        must="released",
    ),
    Report(
        name="place of the largest signed byte",
        issue=191499,
        build=lambda: rm.Extreme("argmax"),
        example=lambda: _bytes(-128, 127, _I8),
        shows=lambda: _bytes(-120, -3, _I8),
        ranges={"samples": (-128, 127)},
        must="refused",
        operator="aten.argmax",
        question="rows of negative numbers only",
    ),
    Report(
        name="any of bytes as a byte",
        issue=198081,
        build=rm.AnyPixel,
        example=lambda: {"mask": _whole(0, 1, 6, 64, dtype=_U8)},
        shows=lambda: {"mask": _whole(0, 1, 6, 64, dtype=_U8)},
        ranges={"mask": (0, 1)},
        must="refused",
        operator="aten.any",
        question="any draw: the output's dtype",
    ),
    Report(
        name="any of whole numbers",
        issue=198081,
        build=rm.AnyPixel,
        example=lambda: {"mask": _whole(0, 1, 6, 64)},
        shows=lambda: {"mask": _whole(0, 1, 6, 64)},
        ranges={"mask": (0, 1)},
        must="released",
    ),
    Report(
        name="energies that overflow half",
        issue=183607,
        build=rm.Energy,
        example=lambda: {"x": _between(-300, 300, 6, 16)},
        shows=lambda: {"x": _between(257, 300, 6, 16)},
        ranges={"x": (-300, 300)},
        must="refused",
        operator="aten.",
        question="beyond the square root of the largest half",
    ),
    Report(
        name="energies that half holds exactly",
        issue=183607,
        build=rm.Energy,
        example=lambda: {"x": _whole(-40, 40, 6, 16)},
        shows=lambda: {"x": _whole(-40, 40, 6, 16)},
        ranges={"x": (-40, 40)},
        must="released",
    ),
    Report(
        name="threshold in half",
        issue=185337,
        build=lambda: rm.OverThreshold(torch.float16),
        example=lambda: {"x": _between(0, 1, 6, 16)},
        shows=lambda: {"x": torch.full((6, 16), 0.1)},
        ranges={"x": (0, 1)},
        must="refused",
        operator="aten.",
        question="at the graph's own constants",
    ),
    Report(
        name="threshold in half that nothing is near to",
        issue=185337,
        build=lambda: rm.OverThreshold(torch.float16),
        example=lambda: {"x": _between(0.11, 1, 6, 16)},
        shows=lambda: {"x": _between(0.11, 1, 6, 16)},
        ranges={"x": (0.11, 1)},
        must="released",
    ),
    Report(
        name="first of many ties in bfloat16",
        issue=185337,
        build=rm.Winner,
        example=lambda: {"x": _between(0, 1, 6, 24)},
        shows=lambda: {"x": _between(0, 1, 6, 24)},
        ranges={"x": (0, 1)},
        must="refused",
        operator="aten.",
        question="any draw, against a float64 run that keeps the model's own casts",
    ),
    Report(
        name="fmod of bfloat16 by 1.7",
        issue=186875,
        build=lambda: rm.Wrapped("fmod", 1.7),
        example=lambda: {"angle": _between(-200, 200, 6, 24).bfloat16()},
        shows=lambda: {"angle": torch.full((6, 24), 54.5).bfloat16()},
        # Below some ten turns it is off by less than what is agreed for bfloat16.
        ranges={"angle": (-200, 200)},
        must="refused",
        operator="aten.fmod",
        question="multiples of the divisor as the dtype holds it",
    ),
    Report(
        name="fmod of bfloat16 within the first turn",
        issue=186875,
        build=lambda: rm.Wrapped("fmod", 1.7),
        example=lambda: {"angle": _between(-1.5, 1.5, 6, 24).bfloat16()},
        shows=lambda: {"angle": _between(-1.5, 1.5, 6, 24).bfloat16()},
        ranges={"angle": (-1.5, 1.5)},
        must="released",
    ),
    Report(
        name="steps beyond a signed byte",
        issue=196794,
        build=rm.Steps,
        example=lambda: {"x": _between(-10, 10, 6, 16)},
        shows=lambda: {"x": _between(7, 10, 6, 16)},
        ranges={"x": (-10, 10)},
        must="refused",
        operator="aten.",
        question="beyond the range of a dtype that the graph casts to",
    ),
    Report(
        name="steps within a signed byte",
        issue=196794,
        build=rm.Steps,
        example=lambda: {"x": _between(-6, 6, 6, 16)},
        shows=lambda: {"x": _between(-6, 6, 6, 16)},
        ranges={"x": (-6, 6)},
        must="released",
    ),
    Report(
        name="how often a unit fits",
        issue=197895,
        build=rm.Shares,
        example=lambda: {"amount": _between(0, 8, 6, 24), "unit": _between(0.1, 1, 6, 24)},
        shows=lambda: {"amount": _MULTIPLES * 0.1, "unit": torch.full((6, 24), 0.1)},
        ranges={"amount": (0, 8), "unit": (0.1, 1)},
        must="refused",
        operator="aten.div",
        question="one input a multiple of the other",
    ),
    Report(
        name="how often a whole unit fits",
        issue=197895,
        build=rm.Shares,
        example=lambda: {"amount": _whole(0, 90, 6, 24), "unit": _whole(1, 9, 6, 24)},
        shows=lambda: {"amount": _whole(0, 90, 6, 24), "unit": _whole(1, 9, 6, 24)},
        ranges={"amount": (0, 90), "unit": (1, 9)},
        must="released",
    ),
    Report(
        name="ties for the best in bfloat16",
        issue=195214,
        build=rm.Best,
        example=lambda: {"x": _between(0, 4, 6, 24).bfloat16()},
        shows=lambda: {"x": _between(0, 4, 6, 24).bfloat16()},
        ranges={"x": (0, 4)},
        must="refused",
        operator="aten.",
        question="any draw, judged as near ties are",
    ),
    Report(
        name="shards of a billion ids",
        issue=175966,
        build=lambda: rm.Offset(1_000_000_000),
        example=lambda: {"ids": _whole(0, 999, 6, 9)},
        shows=lambda: {"ids": _whole(0, 999, 6, 9)},
        ranges={"ids": (0, 999)},
        # Our passes fold the product before Inductor sees it, and the package is right.
        must="released",
    ),
    Report(
        name="shards of a thousand ids",
        issue=175966,
        build=lambda: rm.Offset(1000),
        example=lambda: {"ids": _whole(0, 999, 6, 9)},
        shows=lambda: {"ids": _whole(0, 999, 6, 9)},
        ranges={"ids": (0, 999)},
        must="released",
    ),
    Report(
        name="features cut behind a batch norm",
        issue=195582,
        build=lambda: rm.NormThenCut(50),
        example=lambda: {"x": torch.randn(6, 1, 4, 4)},
        shows=lambda: {"x": torch.randn(6, 1, 4, 4)},
        ranges={"x": (-5, 5)},
        # Our passes fold the norm before Inductor sees it, and the package is right.
        must="released",
    ),
    Report(
        name="features filled up behind a batch norm",
        issue=195582,
        build=lambda: rm.NormThenCut(460),
        example=lambda: {"x": torch.randn(6, 1, 4, 4)},
        shows=lambda: {"x": torch.randn(6, 1, 4, 4)},
        ranges={"x": (-5, 5)},
        must="released",
    ),
    Report(
        name="places of the largest with NaN",
        issue=0,
        build=rm.Peaks,
        example=lambda: {"x": torch.randn(6, 3, 9, 9)},
        shows=lambda: {"x": _with_nan(6, 3, 9, 9)},
        must="refused",
        operator="aten.max_pool2d",
        question="several NaN, at staggered places",
    ),
    Report(
        name="places of the largest of finite numbers",
        issue=0,
        build=rm.Peaks,
        example=lambda: {"x": torch.randn(6, 3, 9, 9)},
        shows=lambda: {"x": torch.randn(6, 3, 9, 9)},
        ranges={"x": (-5, 5)},
        must="released",
    ),
    Report(
        name="whole tenths in half",
        issue=0,
        build=rm.Tenths,
        example=lambda: {"x": _between(0, 8, 6, 24).half()},
        shows=lambda: {"x": (_MULTIPLES * 0.1).half()},
        ranges={"x": (0, 8)},
        # Its product is rounded in half precision, and so may be any of its steps: that is told.
        must="released",
    ),
    Report(
        name="whole tenths between tenths in half",
        issue=0,
        build=rm.Tenths,
        example=lambda: {"x": _between(0.12, 0.18, 6, 24).half()},
        shows=lambda: {"x": _between(0.12, 0.18, 6, 24).half()},
        ranges={"x": (0.12, 0.18)},
        must="released",
    ),
)

REPORTS = (*_PUBLIC, *NEIGHBOURS)


@dataclass(frozen=True)
class ReportRow:
    """A report, what happened to its delivery, and whether that is what must.

    `asked` tells whether the wrong operator was looked for.
    """

    report: Report
    judged: Judged
    asked: bool = True

    @property
    def good(self) -> bool:
        """Tell whether it was refused by its numbers, with the operator, or released, as it must.

        A wrong one that is refused before it was compared was not seen.
        """
        if self.report.must == "released":
            return not self.judged.refused
        operator = self.judged.operator
        named = not self.asked or (operator != "" and operator.startswith(self.report.operator))
        return self.judged.refused and not self.judged.before and named


def judge_reports(
    chosen: Iterable[Report], folder: Path, *, localizes: bool = True
) -> list[ReportRow]:
    """Deliver and judge each; tell of each as it is known.

    With `localizes`, the wrong operator of each refused one is looked for, which takes minutes.
    """
    judge, rows = Judge(folder, localizes=localizes), []
    try:
        for report in chosen:
            row = ReportRow(report, judge.judge(report), localizes)
            mark = "as it must" if row.good else f"NOT {report.must}"
            told = f"{mark}: {report.name}: {row.judged.told} {row.judged.operator}"
            print(f"{told} ({row.judged.seconds:.0f} s)", file=sys.stderr, flush=True)
            rows.append(row)
    finally:
        judge.close()
    return rows


def reports_table(rows: Iterable[ReportRow]) -> list[str]:
    """Return what happened to the reports, as Markdown."""
    lines = [
        "| pattern | report | must be | asked by | became | operator named |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        report, judged = row.report, row.judged
        issue = str(report.issue) if report.issue else "none found"
        became = judged.told if row.good else f"**{judged.told}**"
        lines.append(
            f"| {report.name} | {issue} | {report.must} | {report.question} | {became} "
            f"| {judged.operator} |"
        )
    return lines


def brief_table(rows: Iterable[ReportRow]) -> list[str]:
    """Return for a page of the documents what happened to each pattern, and what saw it."""
    lines = ["| report | pattern | became | seen by |", "|---|---|---|---|"]
    for row in rows:
        report, judged = row.report, row.judged
        address = f"https://github.com/pytorch/pytorch/issues/{report.issue}"
        issue = f"[{report.issue}]({address})" if report.issue else "none found"
        if not judged.refused:
            became = "released: right within what is declared"
            became = became if report.must == "released" else "**released**"
            lines.append(f"| {issue} | {report.name} | {became} | |")
            continue
        case = judged.result.reasons[0].partition(",")[0]
        became = "refused" if row.good else f"**{judged.told}**"
        lines.append(f"| {issue} | {report.name} | {became} | {report.question}: `{case}` |")
    return lines
