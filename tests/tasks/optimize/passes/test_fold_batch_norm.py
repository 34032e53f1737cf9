"""Folding batch norms: the same function with fewer operators, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.fold_batch_norm import FoldBatchNorm

BATCH_NORM = torch.ops.aten.batch_norm.default


def trained(module: nn.Module) -> nn.Module:
    """Give every batch norm statistics and an affine map that change what goes through."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 2.0)
                nn.init.normal_(part.bias)
    return module.eval()


def export(module: nn.Module, x: torch.Tensor) -> ExportedProgram:
    return torch.export.export(module, (x,), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))


def fold(module: nn.Module, x: torch.Tensor) -> tuple[bool, ExportedProgram]:
    """Fold in the exported module, check the outputs at two sizes, and return what came out."""
    with torch.no_grad():
        program = export(trained(module), x)
        want = [module(x), module(x[:3])]
        modified = apply_pass(FoldBatchNorm({}), program)
        for given, expected in zip((x, x[:3]), want, strict=True):
            got = program.module()(given)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    return modified, program


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (nn.Conv1d, nn.BatchNorm1d, (9,)),
        (nn.Conv2d, nn.BatchNorm2d, (9, 9)),
        (nn.Conv3d, nn.BatchNorm3d, (9, 9, 9)),
    ],
)
def test_a_convolution_takes_up_the_batch_norm_after_it(
    layer: Callable[..., nn.Module],
    norm: Callable[..., nn.Module],
    shape: tuple[int, ...],
    bias: bool,
    affine: bool,
) -> None:
    module = nn.Sequential(layer(3, 4, 3, bias=bias), norm(4, affine=affine), nn.ReLU())
    modified, program = fold(module, torch.randn(5, 3, *shape))
    assert modified
    assert not [node for node in program.graph.nodes if node.target is BATCH_NORM]
    assert len(program.state_dict) == 2, "weight and bias, and none of the statistics"


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_takes_up_the_batch_norm_after_it(bias: bool) -> None:
    module = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.BatchNorm1d(4))
    assert fold(module, torch.randn(5, 3))[0]


def test_the_batch_norm_may_be_the_output() -> None:
    modified, program = fold(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.randn(5, 3, 2, 2)
    )
    assert modified
    assert len(program.graph_signature.user_outputs) == 1


def test_a_linear_layer_on_three_axes_is_left_alone() -> None:
    # Batch norm works on axis 1 there, which is not what the linear layer made.
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(6))
    modified, program = fold(module, torch.randn(5, 6, 3))
    assert not modified
    assert [node for node in program.graph.nodes if node.target is BATCH_NORM]


@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_a_convolution_with_padding_by_name_is_folded_too(padding: str | int) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=padding), nn.BatchNorm2d(4))
    modified, program = fold(module, torch.randn(5, 3, 6, 6))
    assert modified
    assert not [node for node in program.graph.nodes if node.target is BATCH_NORM]


def test_a_convolution_without_a_batch_is_left_alone() -> None:
    # [C, L]: batch norm takes the length for the channels, and both are 4 here.
    module = trained(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    x = torch.randn(3, 4)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
        assert not apply_pass(FoldBatchNorm({}), program)
        torch.testing.assert_close(program.module()(x), module(x))


def test_a_half_precision_layer_under_a_float32_batch_norm_is_left_alone() -> None:
    module = trained(nn.Sequential(nn.Conv2d(3, 4, 1).bfloat16(), nn.BatchNorm2d(4)))
    x = torch.randn(5, 3, 4, 4).bfloat16()
    with torch.no_grad():
        program = export(module, x)
        assert not apply_pass(FoldBatchNorm({}), program)
        torch.testing.assert_close(program.module()(x), module(x))


class TwoUsers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.norm(y) + y  # type: ignore[no-any-return]


class SharedWeights(TwoUsers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)) + self.conv(x + 1)  # type: ignore[no-any-return]


class TiedWeights(nn.Module):
    """Two layers of one weight, and two batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.two.weight = self.one.weight
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.two(self.first(self.one(x))))  # type: ignore[no-any-return]


class TiedStatistics(TiedWeights):
    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Conv2d(3, 3, 1)
        self.second = self.first


@pytest.mark.parametrize("module", [TwoUsers(), SharedWeights(), TiedWeights(), TiedStatistics()])
def test_a_layer_that_something_else_needs_is_left_alone(module: nn.Module) -> None:
    assert not fold(module, torch.randn(5, 3, 4, 4))[0]


def test_a_second_time_there_is_nothing_to_fold() -> None:
    _, program = fold(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.randn(5, 3, 2, 2))
    assert not apply_pass(FoldBatchNorm({}), program)
