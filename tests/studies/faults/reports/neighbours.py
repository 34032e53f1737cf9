"""Patterns of the kinds that public reports are of, written down before the gate had seen them."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.studies.faults.cases import Report
from tests.studies.faults.reports import models as rm


def _uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.rand(shape) * (high - low) + low


def _bytes(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, shape).to(torch.uint8)


_STEPS = torch.arange(144).reshape(6, 24)
_WIDTHS = (0.1, 0.3, 0.7, 0.05)

NEIGHBOURS: tuple[Report, ...] = (
    Report(
        name="lowest of a quantised signal",
        issue=191499,
        build=rm.LowestQuantised,
        example=lambda: {"x": _uniform(0, 1, 6, 48)},
        shows=lambda: {"x": _uniform(0.5, 0.9, 6, 48)},
        ranges={"x": (0, 1)},
        must="refused",
        operator="aten.amin",
        question="rows that lie in a part of the range that holds no 0",
    ),
    Report(
        name="later half of a tenth",
        issue=198057,
        build=lambda: rm.LateInPeriod(0.1),
        example=lambda: {"time": _uniform(0, 10, 6, 24)},
        shows=lambda: {"time": _STEPS * 0.05},
        ranges={"time": (0, 10)},
        must="refused",
        operator="aten.remainder",
        question="at the graph's own constants, of what rises and falls",
    ),
    Report(
        name="later half of an eighth",
        issue=198057,
        build=lambda: rm.LateInPeriod(0.125),
        example=lambda: {"time": _uniform(0, 10, 6, 24)},
        shows=lambda: {"time": _STEPS * 0.0625},
        ranges={"time": (0, 10)},
        must="released",
    ),
    Report(
        name="bins of each feature's own width",
        issue=197895,
        build=lambda: rm.BinnedByFeature(*_WIDTHS),
        example=lambda: {"x": _uniform(0, 20, 6, 4)},
        shows=lambda: {"x": torch.arange(24).reshape(6, 4) * torch.tensor(_WIDTHS)},
        ranges={"x": (0, 20)},
        must="refused",
        operator="aten.div",
        question="multiples of the divisor, feature by feature",
    ),
    Report(
        name="bins of each feature's own power of two",
        issue=197895,
        build=lambda: rm.BinnedByFeature(0.5, 0.25, 2.0, 0.125),
        example=lambda: {"x": _uniform(0, 10, 6, 4)},
        shows=lambda: {"x": torch.arange(24).reshape(6, 4) * 0.125},
        ranges={"x": (0, 10)},
        must="released",
    ),
    Report(
        name="what bfloat16 loses",
        issue=185337,
        build=rm.LostByRounding,
        example=lambda: {"x": torch.randn(6, 20)},
        shows=lambda: {"x": torch.randn(6, 20)},
        must="refused",
        operator="aten.",
        question="any draw, against a float64 run that keeps the model's own casts",
    ),
    Report(
        name="rows enlarged by a tenth, columns to twice as many",
        issue=198201,
        build=lambda: rm.Stretched(1.1, 2.0),
        example=lambda: {"x": torch.randn(6, 3, 9, 5)},
        shows=lambda: {"x": torch.randn(6, 3, 9, 5)},
        must="refused",
        operator="aten.upsample_nearest2d",
        question="any draw",
    ),
    Report(
        name="rows left as they are, columns to twice as many",
        issue=198201,
        build=lambda: rm.Stretched(1.0, 2.0),
        example=lambda: {"x": torch.randn(6, 3, 9, 5)},
        shows=lambda: {"x": torch.randn(6, 3, 9, 5)},
        must="released",
    ),
    Report(
        name="bytes scaled by both extremes at once",
        issue=191499,
        build=rm.ScaledByExtremes,
        example=lambda: {"x": _bytes(0, 255, 6, 32)},
        shows=lambda: {"x": _bytes(90, 200, 6, 32)},
        ranges={"x": (0, 255)},
        must="refused",
        operator="aten.aminmax",
        question="rows that lie in a part of the range that holds no 0",
    ),
)
