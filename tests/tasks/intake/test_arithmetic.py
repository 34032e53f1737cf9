"""What a graph computes from constants: bounded before it is computed, and else let be."""

from __future__ import annotations

import pytest

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.constant_limits import require_small
from handoff.tasks.intake.source import parse_source
from handoff.tasks.optimize.operators import BUILT_IN

_MODULE = """import torch
class FxModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.load_state_dict(torch.load(r'x/state_dict.pt'))
    def forward(self, x):
{lines}
        return {value}
"""


def read(*lines: str, value: str = "x") -> None:
    text = _MODULE.format(lines="\n".join(f"        {line}" for line in lines), value=value)
    require_small(parse_source(text.encode(), BUILT_IN))


_DOUBLING = ["a0 = tuple([x, x])", *(f"a{i} = tuple([a{i - 1}, a{i - 1}])" for i in range(1, 60))]
_NESTING = ["a0 = tuple([x])", *(f"a{i} = tuple([a{i - 1}])" for i in range(1, 60))]


# Computed, each of the first would end by the memory or by pytest's own limit.
@pytest.mark.parametrize(
    "lines",
    [
        ["a = math_factorial(20000000)"],
        ["a = 7 ** 400000000"],
        ["a = pow(7, 400000000)"],
        ["a = 1 << 1000000000"],
        ["a = 3 + 4", "b = a << 1000000000"],
        ["a = 10 ** 4000", "b = a ** 4000"],
        ["a = x.size(0)", "b = a ** 400000000"],
        ["a = x.shape", "b = a[0]", "c = b << 4000000000"],
        ["a = x.numel()", "b = a * a", "c = b ** 100000"],
        ["a = math_comb(100000000, 50000000)"],
        ["a = math_perm(100000000)"],
        ["a = math_perm(100000000, 50000000)"],
        ["a = round(5, -1000000000)"],
        ["a = [1, 2] * 1000000000"],
        ["a = 1000000000000 * (1, 2)"],
        ["a = range(1000000000000)", "b = list(a)"],
        ["a = range(1000000000000)", "b = sum(a)"],
        ["a = max(range(0, 1000000000000))"],
        ["a = _operator_contains(range(0, 1000000000000), 0.5)"],
        ["a = _operator_countOf(range(0, 1000000000000), 5)"],
        ["a = torch.ones(1000000000000)"],
        ["a = torch.zeros([1000000, 1000000], dtype = torch.bool)"],
        ["a = torch.arange(1000000000000.0)"],
        ["a = torch.arange(0, 1, 1e-12)"],
        ["a = torch.linspace(0, 1, 1000000000000)"],
        ["a = torch.eye(1000000)"],
        ["a = torch.full((1000000000000,), 1.0)"],
        ["a = torch.randn(1000000000000, device = device(type='cpu'), pin_memory = False)"],
        ["a = torch.ops.aten.ones.default([1000000000000])"],
        ["a = torch.ops.aten.arange.default(1000000000000)"],
        ["a = torch.tensor(range(0, 1000000000000))"],
        ["a = x.new_zeros(1000000000000)"],
        ["a = x.new_ones((1000000, 1000000))"],
        _DOUBLING,
        _NESTING,
        ["a = [1] * 1000000", *(f"b{i} = list(a)" for i in range(60))],
    ],
    ids=lambda lines: lines[-1][:40],
)
def test_what_would_take_minutes_or_the_memory_is_refused_at_once(lines: list[str]) -> None:
    with pytest.raises(DeliveryUnreadable, match="too large from constants") as caught:
        read(*lines)
    assert caught.value.where.startswith("module.py:")


@pytest.mark.parametrize(
    "lines",
    [
        ["a = math_factorial(20)"],
        ["a = x.size(0)", "b = a ** 2", "c = a * b", "d = c // 7", "e = torch.ones(d, 3)"],
        ["a = x ** 400000000"],
        ["a = torch.pow(2.0, x)"],
        ["a = 2.5 ** 3", "b = a * x"],
        ["a = 2.5 ** 4000000"],
        ["a = math_sqrt(64)", "b = x / a"],
        ["a = 1 << 40"],
        ["a = [1, 2] * 3", "b = x.permute(0, 1)"],
        ["a = (1, 2) + (3,)"],
        ["a = x.shape", "b = a[0]", "c = x.view(b, 4)", "d = c * 1000000000000"],
        ["a = pow(7, 400000000, 13)"],
        ["a = torch.arange(0, 512)", "b = torch.ones([512, 512], dtype = torch.bool)"],
        ["a = round(5.25, 1)"],
        ["a = 1 / 0"],
        ["a = x.split(2)", "b = a[0]", "c = a[1]", "d = tuple([b, c])"],
        ["a = sum([1, 2, 3])", "b = max(1, 2)", "c = x * a"],
    ],
    ids=lambda lines: lines[-1][:40],
)
def test_what_models_compute_is_let_through(lines: list[str]) -> None:
    read(*lines)


def test_an_output_that_holds_itself_many_times_is_refused() -> None:
    pairs = [f"a{i} = tuple([a{i - 1}, a{i - 1}])" for i in range(1, 30)]
    with pytest.raises(DeliveryUnreadable, match="elements in a value"):
        read("a0 = tuple([x, x])", *pairs, value="a29")
    read("a0 = tuple([x, x])", *pairs[:3], value="a3")
