"""Deliver's options: each way to write one wrongly is one sentence, and its remedy helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.deliver.arguments import describe_inputs
from handoff.tasks.deliver.step import deliver

NAMES = ("x", "ids", "scale")
INPUTS = (torch.randn(4, 8), torch.arange(4), torch.tensor(2.0))
BATCH = {"x": {0: "batch"}, "ids": {0: "batch"}}


def described(option: str, given: Any) -> Any:
    """Describe the inputs with one option given, and the axes that it is about."""
    options = {"dynamic": BATCH, "dimensions": None, "ranges": None, option: given}
    return describe_inputs(NAMES, INPUTS, **options)


@pytest.mark.parametrize(
    ("option", "given", "message", "remedy"),
    [
        ("dimensions", {"batch": (64, 1)}, "smaller one first, got (64, 1)", {"batch": (1, 64)}),
        ("dimensions", {"batch": 64}, "expected (SMALLEST, LARGEST), got 64", {"batch": (1, 64)}),
        ("dimensions", {"batch": (-1, 8)}, "sizes of 0 or more, got (-1, 8)", {"batch": (1, 8)}),
        ("dimensions", {"batch": (1, 8, 9)}, "divides the others, got (1, 8", {"batch": (1, 8)}),
        ("dimensions", {"batch": (1, 9, 2)}, "divides the others, got", {"batch": (2, 8, 2)}),
        ("dimensions", {"batch": (1, 2, 3, 4)}, "whole numbers, got (1, 2, 3", {"batch": (1, 64)}),
        ("dimensions", {"batch": ("1", "8")}, "whole numbers, got", {"batch": (1, 64)}),
        ("dimensions", {"batch": (True, 8)}, "whole numbers, got (True", {"batch": (1, 64)}),
        ("dimensions", {"batch": None}, "whole numbers, got None", {"batch": (1, 64)}),
        ("dynamic", {"x": [0]}, "expected {AXIS: DIMENSION}, got [0]", {"x": {0: "batch"}}),
        ("dynamic", {"x": 0}, "expected {AXIS: DIMENSION}, got 0", {"x": {0: "batch"}}),
        ("dynamic", {"x": [0, 1]}, "got [0, 1]", {"x": {0: "batch", 1: "axis1"}}),
        ("ranges", {"ids": (9, 0)}, "the lower one first, got (9, 0)", {"ids": (0, 9)}),
        ("ranges", {"ids": 9}, "two finite numbers, got 9", {"ids": (0, 9)}),
        ("ranges", {"ids": (0, 2)}, "values from 0 to 2, got 0 to 3", {"ids": (0, 3)}),
    ],
)  # fmt: skip
def test_a_wrong_option_is_reported_with_what_to_write_and_that_helps(
    option: str, given: Any, message: str, remedy: Any
) -> None:
    with pytest.raises(UsageProblem) as caught:
        described(option, given)
    assert message in str(caught.value)
    assert f"Write {option}={remedy}" in caught.value.remedy
    assert described(option, remedy).inputs[0].name == "x"


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("dimensions", {"bach": (1, 8)}, "one of batch, got bach. Did you mean batch?"),
        ("dynamic", {"idz": {0: "batch"}}, "one of x, ids, scale, got idz. Did you mean ids?"),
        ("dynamic", {"x": {2: "batch"}}, "one of its axes, 0 to 1, got 2"),
        ("dynamic", {"x": {-1: "cols"}}, "got -1. Write 1: axes are counted from the front"),
        ("dynamic", {"x": {"0": "batch"}}, "got '0'. Write 0, without quotes"),
        ("dynamic", {"scale": {0: "batch"}}, "no axis, because it is a scalar, got 0"),
        ("dynamic", {"x": {0: "my batch"}}, "letters, digits and '_', such as 'batch', got 'my b"),
        ("dynamic", {"x": {0: ("batch", 1, 8)}}, "a name such as 'batch', got ('batch', 1, 8)"),
        ("ranges", {"idx": (0, 9)}, "Did you mean ids?"),
        ("ranges", {"ids": (0, float("nan"))}, "two finite numbers, got (0, nan)"),
        ("ranges", {"ids": {"low": 0}}, "two finite numbers, got {'low': 0}"),
    ],
)  # fmt: skip
def test_what_has_no_one_remedy_is_reported_with_what_there_is(
    option: str, given: Any, message: str
) -> None:
    with pytest.raises(UsageProblem) as caught:
        described(option, given)
    assert message in str(caught.value)


class Adds(nn.Module):
    def forward(self, x: Tensor, ids: Tensor, scale: Tensor) -> Tensor:
        return x.sum(1) * scale + ids


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dynamic": ["x"]}, "dynamic is no dictionary: expected {'x': {0: 'batch'}}, got ['x']"),
        ({"dimensions": [("batch", (1, 8))]}, "dimensions is no dictionary"),
        ({"ranges": (0, 1)}, "ranges is no dictionary: expected {'x': (0, 1)}, got (0, 1)"),
        ({"batch_invariant": "no"}, "expected True or False, got 'no'"),
        ({"name": 3}, "expected a name such as 'ranker', got 3"),
        ({"example_kwargs": [1]}, "example_kwargs names no arguments"),
    ],
)  # fmt: skip
def test_an_option_of_another_kind_is_reported_before_anything_runs(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem) as caught:
        deliver(Adds(), INPUTS, tmp_path / "toy", **{"name": "toy", **given})
    assert message in str(caught.value)
    assert not (tmp_path / "toy").exists()
