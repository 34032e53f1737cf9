"""The figures beside the rules, on outputs whose figures are known."""

from __future__ import annotations

import math

import pytest
import torch

from handoff.tasks.verify.figures import measure


def test_equal_outputs_have_no_noise() -> None:
    eager = torch.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.5]])
    found = measure(eager.clone(), eager, eager.double())
    assert found is not None
    assert found.cosine == pytest.approx(1.0)
    assert found.snr_db == math.inf
    assert found.quantiles == (0.0, 0.0, 0.0)
    assert (found.ulp, found.top1, found.top5) == (0.0, 1.0, None)


def test_noise_is_told_in_decibels_quantiles_and_last_places() -> None:
    exact = torch.full((1000,), 1.0, dtype=torch.float64)
    package = exact.clone()
    package[-1] += 2.0**-20
    found = measure(package.float(), exact.float(), exact)
    assert found is not None
    assert found.snr_db == pytest.approx(10 * math.log10(1000 / 2.0**-40), rel=1e-4)
    assert found.quantiles == (0.0, 0.0, 0.0), "one in a thousand lies beyond the 99.9th percentile"
    assert found.ulp == 8.0
    package[-2] += 2.0**-20
    found = measure(package.float(), exact.float(), exact)
    assert found is not None
    assert found.quantiles == (0.0, 0.0, 2.0**-20)


def test_an_opposite_output_has_a_cosine_of_minus_one() -> None:
    eager = torch.tensor([1.0, -2.0])
    found = measure(-eager, eager, eager.double())
    assert found is not None
    assert found.cosine == pytest.approx(-1.0)


def test_classes_agree_row_by_row() -> None:
    eager = torch.eye(8)[:4] + torch.arange(8) * 0.01
    package = eager.clone()
    package[0] = torch.arange(8.0)
    found = measure(package, eager, eager.double())
    assert found is not None
    assert found.top1 == 0.75
    assert found.top5 == 0.75


@pytest.mark.parametrize("special", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out(special: float) -> None:
    eager = torch.tensor([1.0, special])
    found = measure(eager.clone(), eager, eager.double())
    assert found is not None
    assert found.cosine == pytest.approx(1.0)
    assert measure(eager[1:], eager[1:], eager[1:].double()) is None


def test_whole_numbers_have_no_figures() -> None:
    assert measure(torch.tensor([1]), torch.tensor([1]), torch.tensor([1])) is None
