"""Scale: a column is held to its own size, and an element near zero to its neighbours'."""

from __future__ import annotations

import pytest
import torch

from handoff.tasks.verify.scale import NO_SCALE, find_scale


def test_a_small_feature_beside_a_large_one_has_a_size_of_its_own() -> None:
    drawn = torch.stack([torch.randn(40), 1e9 + torch.randn(40)], 1)
    sizes = find_scale([drawn]).sizes(drawn.double())
    assert float(sizes[:, 0].max()) < 10.0
    assert float(NO_SCALE.sizes(drawn.double())[:, 0].min()) > 1e8


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_of_few_rows_a_feature_that_is_small_by_luck_is_like_the_others(rows: int) -> None:
    torch.manual_seed(0)
    scale = find_scale([torch.randn(200, 1000)])
    # As inputs that ask do: everything is larger than in what was drawn, and some of it cancels.
    sizes = scale.sizes(1e4 * torch.randn(rows, 1000).double())
    assert float(sizes.min()) > 1e3


def test_what_cancels_in_rows_that_are_alike_is_told_by_the_rounding_that_it_carries() -> None:
    torch.manual_seed(0)
    scale = find_scale([torch.randn(200, 1000)])
    row = 1e4 * torch.randn(1000).double()
    row[7] = 0.1
    rows = row + 1e-3 * torch.randn(2, 1000).double()
    eps = torch.finfo(torch.float32).eps
    of_the_terms, its_own = eps * 1e4 * torch.randn(2, 1000), eps * rows * torch.randn(2, 1000)
    assert float(scale.sizes(rows, rows - of_the_terms.double(), eps)[:, 7].min()) > 1e3
    assert float(scale.sizes(rows, rows - its_own, eps)[:, 7].max()) < 10.0


@pytest.mark.parametrize("rows", [2, 7, 40])
def test_a_feature_stays_small_where_the_others_grow_beyond_it(rows: int) -> None:
    torch.manual_seed(0)
    drawn = torch.randn(40, 8)
    drawn[:, 3] = drawn[:, 3].sigmoid()
    large = 1e6 * torch.randn(rows, 8).double()
    large[:, 3] = large[:, 3].sigmoid()
    sizes = find_scale([drawn]).sizes(large)
    assert float(sizes[:, 3].max()) < 10.0
    assert float(sizes[:, :3].min()) > 1e5


def test_an_output_of_one_axis_whose_size_is_fixed_holds_features() -> None:
    drawn = [torch.tensor([1e-3, 1e6]) * (1.0 + torch.rand(2)) for _ in range(9)]
    assert float(find_scale(drawn).sizes(drawn[0].double())[0]) < 1.0


def test_channels_are_features_as_columns_are() -> None:
    drawn = torch.randn(4, 2, 6, 6) * torch.tensor([1.0, 1e6])[None, :, None, None]
    assert float(find_scale([drawn]).sizes(drawn.double())[:, 0].max()) < 10.0


def test_an_element_near_zero_by_luck_has_the_size_of_what_is_around_it() -> None:
    drawn = torch.randn(40, 8)
    drawn[3, 3] = 0.0
    size = float(find_scale([drawn]).sizes(drawn.double())[3, 3])
    assert 0.5 < size < 2.0


def test_of_few_values_and_of_axes_that_change_no_feature_is_told() -> None:
    assert not find_scale([torch.randn(2, 3)]).features
    assert not find_scale([torch.randn(9, 3), torch.randn(9, 4)]).features
    assert not find_scale([torch.arange(20)]).features
    assert not find_scale([]).features
    assert float(NO_SCALE.sizes(torch.zeros(0, 3).double()).sum()) == 0.0


def test_an_output_that_data_left_without_a_row_has_no_sizes() -> None:
    scale = find_scale([torch.randn(9, 3), torch.randn(4, 3)])
    assert scale.features
    assert scale.sizes(torch.zeros(0, 3).double()).shape == (0, 3)
    assert scale.noise_sizes(torch.zeros(0, 3).double()).shape == (0, 3)


def test_what_is_not_finite_has_no_part_in_a_size() -> None:
    drawn = torch.randn(40, 2)
    drawn[0, 0] = torch.inf
    assert bool(torch.isfinite(find_scale([drawn]).sizes(drawn.double())[1:]).all())


def test_a_number_without_axes_has_its_own_size() -> None:
    drawn = [torch.tensor(3.0), torch.tensor(-4.0)]
    assert not find_scale(drawn).features
    assert float(find_scale(drawn).sizes(drawn[1].double())) == 4.0
