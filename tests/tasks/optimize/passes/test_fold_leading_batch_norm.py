"""Folding a batch norm into the layer behind it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from handoff.tasks.optimize.passes.fold_leading_batch_norm import FoldLeadingBatchNorm
from tests.tasks.optimize.passes.exporting import apply, count
from tests.tasks.optimize.passes.test_fold_batch_norm import BATCH_NORM, TiedWeights, trained


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("padding", [0, "valid"])
def test_a_convolution_takes_up_the_batch_norm_before_it(
    bias: bool, groups: int, padding: int | str
) -> None:
    conv = nn.Conv2d(4, 8, 3, groups=groups, bias=bias, padding=padding)
    module = trained(nn.Sequential(nn.BatchNorm2d(4), conv, nn.ReLU()))
    modified, program = apply(FoldLeadingBatchNorm({}), module, torch.randn(5, 4, 9, 9))
    assert modified
    assert not count(program, BATCH_NORM)
    assert len(program.state_dict) == 2, "weight and bias, and none of the statistics"


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_takes_up_the_batch_norm_before_it(bias: bool) -> None:
    module = trained(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3, bias=bias)))
    assert apply(FoldLeadingBatchNorm({}), module, torch.randn(5, 6))[0]


class TwoUsers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return self.conv(y) + y  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, padding=1)),
        nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, padding="same")),
        nn.Sequential(nn.BatchNorm2d(4), nn.Linear(9, 3)),
        nn.Sequential(nn.Conv2d(4, 3, 1), TwoUsers()),
        nn.Sequential(nn.Conv2d(4, 3, 1), TiedWeights()),
    ],
)
def test_padding_other_axes_and_shared_results_keep_the_batch_norm(module: nn.Module) -> None:
    modified, program = apply(FoldLeadingBatchNorm({}), trained(module), torch.randn(5, 4, 9, 9))
    assert not modified
    assert count(program, BATCH_NORM)
