"""Squeeze-and-excite blocks between int8 layers: their own function leaves the next one's steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import Calibration, apply_pass
from handoff.tasks.optimize.passes.convolution_to_linear import ConvolutionToLinear
from handoff.tasks.optimize.passes.quantize_int8 import QuantizeInt8
from handoff.tasks.optimize.passes.squeeze_excite import SqueezeExcite
from tests.processors import COMPUTES_INT8, NO_INT8
from tests.tasks.optimize.passes.exporting import export

_CONVOLUTION = torch.ops.handoff.int8_convolution.default
_GATES = torch.ops.handoff.squeeze_excite.default
X = torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))


class Inverted(nn.Module):
    """An inverted residual's inside; `past` says what else takes the block's result."""

    def __init__(self, past: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.expand = nn.Conv2d(3, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.project = nn.Conv2d(24, 24, 1)
        self.past = past

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = nn.functional.silu(self.depthwise(nn.functional.silu(self.expand(x))))
        gates = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
        gated = y * gates
        out = self.project(gated)
        if self.past == "a sum":
            return (out + gated,)
        return (out, gated) if self.past == "an output" else (out,)


def quantized(module: nn.Module, kind: str = "static") -> ExportedProgram:
    program = export(module, X)
    assert apply_pass(ConvolutionToLinear({}), program)
    assert apply_pass(SqueezeExcite({}), program)
    chosen = QuantizeInt8({"activations": kind, "keep": "0"})
    chosen.calibrate(Calibration([(X,)], "these"))
    assert apply_pass(chosen, program)
    return program


@pytest.mark.parametrize("past", ["nothing", "a sum", "an output"])
@pytest.mark.parametrize("kind", ["static", "static-sums"])
def test_the_gates_leave_uint8_for_the_layer_and_its_numbers_for_others(
    past: str, kind: str
) -> None:
    module = Inverted(past).eval()
    program = quantized(module, kind)
    (gates,) = program.graph.find_nodes(op="call_function", target=_GATES)
    assert gates.meta["val"].dtype is torch.uint8
    scale, zero = gates.args[-2:]
    layers = program.graph.find_nodes(op="call_function", target=_CONVOLUTION)
    taking = [layer for layer in layers if layer.args[0] is gates]
    assert [layer.args[1:3] for layer in taking] == [(scale, zero)]
    # What else is float32 gets it through a multiplication, not as steps.
    assert len(gates.users) == (1 if past == "nothing" else 2)
    if not COMPUTES_INT8:
        pytest.skip(f"the graph is right; {NO_INT8}")
    with torch.no_grad():
        made, wanted = program.module()(X.clone()), module(X.clone())
    for got, want in zip(made, wanted, strict=True):
        assert got.dtype is torch.float32
        assert 0.0 < float((got - want).norm() / want.norm()) < 0.03


def test_gates_that_no_int8_layer_takes_stay_float32() -> None:
    class Ended(Inverted):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = nn.functional.silu(self.depthwise(nn.functional.silu(self.expand(x))))
            return (y * self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid(),)

    program = quantized(Ended("nothing").eval())
    (gates,) = program.graph.find_nodes(op="call_function", target=_GATES)
    assert gates.meta["val"].dtype is torch.float32
    assert gates.args[-2:] == (0.0, 0)


def test_with_a_grid_of_each_call_gates_stay_float32_too() -> None:
    class Rows(Inverted):
        def __init__(self) -> None:
            super().__init__("nothing")
            self.last = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.expand(x)
            gates = self.excite(self.squeeze(y.mean((2, 3), keepdim=True)).relu()).sigmoid()
            return (self.last((y * gates).permute(0, 2, 3, 1)),)

    program = quantized(Rows().eval(), "dynamic")
    (gates,) = program.graph.find_nodes(op="call_function", target=_GATES)
    assert gates.args[-2:] == (0.0, 0)
    assert program.graph.find_nodes(
        op="call_function", target=torch.ops.handoff.int8_linear_measured.default
    )
