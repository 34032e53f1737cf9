"""Capture: the declared ranges hold for the exported program, or the delivery is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import DeliveryUnsound, EnvironmentLacking
from handoff.tasks.optimize.capture import capture, describe_outputs


def signature(
    *shapes: tuple[int | str, ...], dtype: str = "float32", **dimensions: Dimension
) -> ModelSignature:
    """Return a signature of inputs `x0`, `x1` and so on of these shapes."""
    specs = tuple(TensorSpec(f"x{i}", dtype, shape) for i, shape in enumerate(shapes))
    return ModelSignature(specs, dimensions=dimensions)


class Pairs(nn.Module):
    """Returns sizes of every kind: `[N, 2 * L]`, `[N]`, `[3]`."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, x], 1), x.sum(1), torch.zeros(3, dtype=torch.int64)


class FixedView(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(6, -1)


class AtLeastTen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] >= 10 else x * 3


class PadsToFours(nn.Module):
    """Pads to a multiple of four and halves twice, as a U-Net does, and joins what is as large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest = (4 - x.shape[-1] % 4) % 4
        x = torch.nn.functional.pad(x, (0, rest))
        half = torch.nn.functional.max_pool1d(x, 2)
        quarter = torch.nn.functional.max_pool1d(half, 2)
        return torch.cat([torch.nn.functional.interpolate(quarter, scale_factor=2.0), half], 1)


def test_sizes_that_forward_computes_are_reported_with_what_does_without_them() -> None:
    wide = signature(("batch", 2, "width"), batch=Dimension(1, 9), width=Dimension(8, 64))
    match = "what forward computes from the sizes width"
    with pytest.raises(DeliveryUnsound, match=match) as caught:
        capture(PadsToFours(), wide)
    assert "TORCH_LOGS" not in str(caught.value)
    assert caught.value.remedy.startswith("Pad or crop the inputs before the model is called")
    # As the remedy says: with the padding left to the caller, at sizes that need none.
    fixed = signature(("batch", 2, 64), batch=Dimension(1, 9))
    assert capture(PadsToFours(), fixed).module()(torch.randn(3, 2, 64)).shape == (3, 4, 32)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps: torch.Tensor = self.rnn(x)[0]
        return steps


def test_steps_of_a_recurrent_layer_have_to_be_fixed_and_are_reported_at_its_line() -> None:
    traced = torch.fx.symbolic_trace(Recurrent().eval())
    varying = signature(("batch", "steps", 4), batch=Dimension(1, 9), steps=Dimension(1, 20))
    with pytest.raises(DeliveryUnsound, match="for one size of steps only") as caught:
        capture(traced, varying)
    assert "declare that dimension as fixed" in caught.value.remedy
    assert "test_capture.py:" in caught.value.where
    fixed = signature(("batch", 20, 4), batch=Dimension(1, 9))
    assert capture(traced, fixed).module()(torch.randn(3, 20, 4)).shape == (3, 20, 2)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_a_program_holds_for_both_ends_of_its_range() -> None:
    program = capture(nn.Linear(4, 2).eval(), signature(("batch", 4), batch=Dimension(1, 50)))
    module = program.module()
    for size in (1, 2, 50):
        assert module(torch.randn(size, 4)).shape == (size, 2)
    with pytest.raises((AssertionError, RuntimeError), match=r"<= 50|batch"):
        module(torch.randn(51, 4))


@pytest.mark.parametrize("limits", [Dimension(1, 1), Dimension(4, 4), Dimension(0, 3)])
def test_narrow_ranges_can_be_captured(limits: Dimension) -> None:
    program = capture(nn.ReLU(), signature(("batch", 4), batch=limits))
    assert program.module()(torch.randn(limits.max, 4)).shape == (limits.max, 4)


def test_two_dimensions_are_distinguished() -> None:
    wanted = signature(("rows", "columns"), rows=Dimension(1, 9), columns=Dimension(1, 9))
    module = capture(nn.ReLU(), wanted).module()
    assert module(torch.randn(2, 7)).shape == (2, 7)
    assert module(torch.randn(5, 5)).shape == (5, 5)


def test_a_dimension_that_two_inputs_share_is_one() -> None:
    wanted = signature(("batch", 4), ("batch", 4), batch=Dimension(1, 9))
    module = capture(Sum(), wanted).module()
    assert module(torch.randn(3, 4), torch.randn(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("module", [FixedView(), AtLeastTen()])
def test_what_does_not_hold_for_the_range_is_refused_with_it(module: nn.Module) -> None:
    wanted = signature(("batch", 4), batch=Dimension(1, 64))
    with pytest.raises(DeliveryUnsound, match="a graph that holds for batch 1 to 64") as caught:
        capture(module, wanted)
    assert "\n" not in str(caught.value)


def test_a_fixed_shape_may_be_baked_in() -> None:
    program = capture(FixedView(), signature((6, 4)))
    assert program.module()(torch.randn(6, 4)).shape == (6, 4)


def test_outputs_are_described_with_the_names_of_their_sizes() -> None:
    wanted = signature(("batch", "length"), batch=Dimension(1, 8), length=Dimension(2, 5))
    outputs, computed = describe_outputs(capture(Pairs(), wanted), wanted)
    assert [str(spec) for spec in outputs] == [
        "output0 float32 [batch, output0_axis1]",
        "output1 float32 [batch]",
        "output2 int64 [3]",
    ]
    assert computed == {"output0_axis1": Dimension(4, 10)}
    # What is described is a signature that can be written down.
    ModelSignature(wanted.inputs, outputs, {**wanted.dimensions, **computed})


class GivesTwice(nn.Module):
    """Returns one tensor twice, the input itself, and a number that is no tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        y = x.sum(1)
        return y, y, x, x.shape[0]


def test_a_tensor_that_is_given_twice_is_described_twice() -> None:
    wanted = signature(("batch", 4), batch=Dimension(1, 8))
    outputs, _ = describe_outputs(capture(GivesTwice(), wanted), wanted)
    assert [spec.shape for spec in outputs] == [("batch",), ("batch",), ("batch", 4)]


class Unreadable(nn.Module):
    """Stands for a torch whose files can't be read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise PermissionError(13, "Permission denied", "torch/export/_trace.py")


def test_what_torch_cant_read_is_not_said_to_be_the_models_fault() -> None:
    with pytest.raises(EnvironmentLacking, match=r"can't read .* got .*_trace\.py"):
        capture(Unreadable(), signature((3,)))
