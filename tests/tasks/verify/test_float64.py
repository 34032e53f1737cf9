"""The float64 reference: everything in it is float64, and the model stays as it was."""

from __future__ import annotations

import torch
from torch import nn

from handoff.tasks.verify.float64 import copy_sharing_tensors, graph_arguments, run_in_float64


class Careless(nn.Module):
    """Casts down by a method, by an argument, and makes constants of the default dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.shift = nn.Buffer(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.norm(self.linear(x)).float() + self.shift
        low = low.to(torch.float32) + torch.ones(8)
        return torch.softmax(low, dim=1, dtype=torch.float32)


def traced() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return torch.fx.symbolic_trace(Careless().eval())


def test_casts_and_constants_below_float64_are_raised() -> None:
    module = traced()
    x = torch.randn(5, 8)
    (got,), _ = run_in_float64(module, (x,))
    double = Careless().eval().double()
    double.load_state_dict(
        module.state_dict(), strict=False
    )  # the trace keeps the ones as a buffer
    with torch.no_grad():
        hidden = double.norm(double.linear(x.double())) + double.shift
        want = torch.softmax(hidden + 1.0, dim=1)
    assert got.dtype is torch.float64
    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


def test_the_model_keeps_its_weights_and_their_precision() -> None:
    module = traced()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    run_in_float64(module, (torch.randn(5, 8),))
    after = module.state_dict()
    assert all(after[name].dtype is tensor.dtype for name, tensor in before.items())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_copy_is_called_in_float64_while_the_original_is_called_in_its_own_precision() -> None:
    """With the very tensors, so that no weights are held twice."""
    module = traced()
    copy = copy_sharing_tensors(module)
    held, original = ({**dict(one.named_parameters()), **dict(one.named_buffers())}
                      for one in (copy, module))  # fmt: skip
    assert held.keys() == original.keys()
    assert all(held[name] is tensor for name, tensor in original.items())
    x = torch.randn(5, 8)
    during: dict[torch.dtype, torch.Tensor] = {}

    def call_the_original(linear: nn.Module, *_: object) -> None:
        assert isinstance(linear.weight, torch.Tensor)
        during[linear.weight.dtype] = module(x)

    with torch.no_grad():
        before = module(x)
        copy.linear.register_forward_hook(call_the_original)  # type: ignore[union-attr]
        (exact,), _ = run_in_float64(copy, (x,))
    assert exact.dtype is torch.float64
    assert torch.equal(before, during[torch.float64])


def test_float32_is_further_away_than_rounding_would_be() -> None:
    module = traced()
    x = torch.randn(5, 8)
    with torch.no_grad():
        low = module(x)
    (exact,), _ = run_in_float64(module, (x,))
    distance = (low.double() - exact).abs().max()
    assert 0 < distance < 1e-5


def test_an_exported_program_runs_with_its_state_lifted() -> None:
    module = traced()
    x = torch.randn(5, 8)
    program = torch.export.export(module, (x,))
    (lifted,), _ = run_in_float64(program.graph_module, graph_arguments(program, (x,)))
    (plain,), _ = run_in_float64(module, (x,))
    torch.testing.assert_close(lifted, plain, rtol=1e-13, atol=1e-13)


def test_the_bytes_of_intermediate_results_grow_with_the_batch() -> None:
    module = traced()
    small = run_in_float64(module, (torch.randn(4, 8),))[1]
    large = run_in_float64(module, (torch.randn(40, 8),))[1]
    assert 9.0 < large / small < 10.5
