"""Which range 256 steps are to span: the whole one, or less where few values lie far out."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from handoff.tasks.optimize.int8.layers import Grid, Observer, grid_of


def observed(*batches: torch.Tensor) -> Grid:
    observer = Observer()
    for batch in batches:
        observer.observe(batch)
    return observer.grid()


def error(grid: Grid, values: torch.Tensor) -> float:
    return float((grid.round(values) - values).square().mean())


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_a_grid_spans_both_ends_and_has_a_zero_of_its_own(low: float, high: float) -> None:
    grid = grid_of(min(low, high), max(low, high))
    assert 0 <= grid.zero <= 255
    ends = torch.tensor([low, high, 0.0], dtype=torch.float64)
    rounded = grid.round(ends)
    assert rounded[2] == 0.0
    assert bool(((rounded - ends).abs() <= grid.scale).all())


def test_evenly_spread_values_get_the_whole_range() -> None:
    values = torch.linspace(-3.0, 5.0, 4001)
    grid = observed(values)
    assert math.isclose(grid.scale, 8.0 / 255, rel_tol=0.01)


def test_an_outlier_among_a_million_values_is_clipped_and_that_rounds_less() -> None:
    torch.manual_seed(0)
    batches = [0.1 * torch.randn(1 << 14) for _ in range(64)]
    batches[5][7] = 5.0
    grid, whole = observed(*batches), grid_of(-0.5, 5.0)
    assert grid.scale < whole.scale / 2
    values = torch.cat(batches)
    assert error(grid, values) < error(whole, values)


def test_an_outlier_among_a_thousand_is_kept_since_clipping_it_would_cost_more() -> None:
    torch.manual_seed(0)
    values = torch.cat([0.1 * torch.randn(1000), torch.tensor([5.0])])
    assert observed(values).scale > 5.0 / 255


def test_batches_count_together_and_what_is_not_finite_not_at_all() -> None:
    grid = observed(torch.tensor([0.0, 1.0]), torch.tensor([math.nan, math.inf, -1.0]))
    assert math.isclose(grid.scale, 2.0 / 255, rel_tol=1e-6)


def test_a_tensor_of_zeros_stays_one() -> None:
    assert torch.equal(observed(torch.zeros(5)).round(torch.zeros(5)), torch.zeros(5))
    assert torch.equal(observed().round(torch.zeros(5)), torch.zeros(5))
