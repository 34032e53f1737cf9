"""Casts whose result nothing defines are noticed, and others aren't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from handoff.tasks.verify.undefined_casts import UndefinedCasts

Model = Callable[[torch.Tensor], torch.Tensor]


def first_undefined_cast(model: Model, *values: float) -> str:
    casts = UndefinedCasts()
    with casts:
        model(torch.tensor(values))
    return casts.first_cast


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        (lambda x: (x * 2).to(torch.int8), (1.0, float("nan")), "float32 to int8"),
        (lambda x: x.to(torch.int8), (127.0, 128.0), "float32 to int8"),
        (lambda x: x.byte(), (-1.0,), "float32 to uint8"),
        (lambda x: x.long(), (float("-inf"),), "float32 to int64"),
        (lambda x: x.double().int(), (3e9,), "float64 to int32"),
        (lambda x: torch.zeros(1, dtype=torch.int32).copy_(x), (1e10,), "float32 to int32"),
    ],
)
def test_a_number_that_the_type_does_not_hold_is_left_open(
    model: Model, values: tuple[float, ...], expected: str
) -> None:
    assert first_undefined_cast(model, *values) == expected


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (lambda x: x.to(torch.int8), (127.9, -128.9)),
        (lambda x: x.clamp(-128, 127).to(torch.int8), (1e9, -1e9)),
        (lambda x: x.half(), (1e9, float("nan"))),
        (lambda x: x.to(torch.bool), (float("nan"), 3.0)),
        (lambda x: x.nan_to_num(0.0).long(), (float("nan"),)),
        (lambda x: (x > 0).long(), (float("nan"), float("inf"))),
    ],
)
def test_what_the_type_holds_is_defined(model: Model, values: tuple[float, ...]) -> None:
    assert first_undefined_cast(model, *values) == ""
