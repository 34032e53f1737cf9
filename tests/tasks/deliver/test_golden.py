"""What a model leaves its inputs as, found by comparing them before and after."""

from __future__ import annotations

import pytest
import torch

from handoff.tasks.deliver.golden import changed_indices

NAN = float("nan")


@pytest.mark.parametrize(
    ("before", "after", "is_changed"),
    [
        ([1.0, NAN], [1.0, NAN], False),
        ([1.0, NAN], [1.0, 3.0], True),
        ([1.0, 3.0], [1.0, NAN], True),
        ([1, 2], [1, 2], False),
        ([True, False], [True, True], True),
    ],
)
def test_an_input_is_changed_where_any_element_is_and_nan_is_the_same_as_nan(
    before: list[float], after: list[float], is_changed: bool
) -> None:
    places = changed_indices((torch.tensor(before),), (torch.tensor(after),))
    assert places == ((0,) if is_changed else ())
