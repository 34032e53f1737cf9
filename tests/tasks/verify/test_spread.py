"""How errors are counted: every element once, in the bin of its size."""

from __future__ import annotations

import torch

from handoff.artifacts.recipe.tolerance import HIGHEST_BIN, LOWEST_BIN, ErrorSpread
from handoff.artifacts.record import from_plain, to_plain
from handoff.tasks.verify.figures import SpreadCount, spreads_of


def test_elements_are_counted_by_their_sizes_over_all_cases() -> None:
    count = SpreadCount(3)
    exact = torch.tensor([1.0, 100.0, 0.0], dtype=torch.float64)
    count.add(exact + torch.tensor([2e-3, 2e-1, 0.0]), exact, exact)
    count.add(exact.clone(), exact, exact)
    spread = count.spread
    assert spread is not None
    assert (spread.output, spread.elements) == (3, 6)
    # 2e-3 is at least 10**-3 and below 10**-2.5; 1 lies in bin 0, and 100 in bin 4.
    assert set(spread.apart) == {
        (LOWEST_BIN, LOWEST_BIN, 2), (0, -6, 1), (0, LOWEST_BIN, 1), (4, -2, 1), (4, LOWEST_BIN, 1),
    }  # fmt: skip
    assert spread.package == ((LOWEST_BIN, 4), (-6, 1), (-2, 1))
    assert spread.eager == ((LOWEST_BIN, 6),)
    assert abs(spread.rms - (2 * (1 + 100**2) / 6) ** 0.5) < 1e-9


def test_what_is_out_of_range_or_not_finite_ends_in_the_last_bins_or_is_left_out() -> None:
    count = SpreadCount(0)
    eager = torch.tensor([1e-30, 1e30, float("nan"), float("inf")], dtype=torch.float64)
    count.add(eager * 2, eager, eager)
    spread = count.spread
    assert spread is not None
    assert spread.elements == 2
    assert set(spread.apart) == {(LOWEST_BIN, LOWEST_BIN, 1), (HIGHEST_BIN, HIGHEST_BIN, 1)}


def test_whole_numbers_and_other_shapes_are_not_counted() -> None:
    count = SpreadCount(0)
    whole = torch.tensor([1, 2])
    count.add(whole, whole, whole)
    count.add(torch.zeros(3), torch.zeros(2), torch.zeros(2))
    assert count.spread is None
    assert spreads_of([count]) == ()


def test_counts_of_a_large_output_stay_small_and_travel_as_json() -> None:
    torch.manual_seed(0)
    exact = torch.randn(200_000, dtype=torch.float64)
    eager = exact.float()
    count = SpreadCount(0)
    count.add(eager + 1e-7 * torch.randn(200_000), eager, exact)
    (spread,) = spreads_of([count])
    plain = to_plain(spread)
    assert len(str(plain)) < 8000
    assert from_plain(ErrorSpread, plain) == spread
