"""Which generated code adds floating-point numbers in an order that threads decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.compile.caching.compiled_interface import interface_apart
from handoff.tasks.compile.reading.cpp_source import find_atomic_sums

pytestmark = pytest.mark.compile

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Adds(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, out: Tensor, ids: Tensor, x: Tensor) -> Tensor:
        return self.function(out, ids, x)


def _compiled(function: Function, folder: Path) -> Path:
    inputs = torch.zeros(50, 16), torch.randint(50, (3000,)), torch.randn(3000, 16)
    package = folder / "model.pt2"
    with interface_apart():
        torch._inductor.aoti_compile_and_package(
            torch.export.export(_Adds(function), inputs), package_path=str(package),
            inductor_configs={"cpp.dynamic_threads": True},
        )  # fmt: skip
    return package


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda out, ids, x: out.index_add(0, ids, x), "index_add"),
        (lambda out, ids, x: out.half().index_add(0, ids, x.half()), "index_add"),
        (lambda out, ids, x: out.index_reduce(0, ids, x, "mean"), "index_reduce"),
        (lambda out, ids, x: out.put(ids, x[:, 0], accumulate=True), "put"),
        (
            lambda out, ids, x: out.index_put((out[:, 0] == 0, ids[0]), x[0, 0], accumulate=True),
            "aten::index_put",
        ),
        (
            lambda out, ids, x: nn.functional.fold(x[:240].reshape(1, 240, 16), (7, 7), (4, 4)),
            "cpp_fused",
        ),
    ],
)
def test_code_that_adds_atomically_is_found(function: Function, named: str, tmp_path: Path) -> None:
    found = find_atomic_sums(_compiled(function, tmp_path))
    assert len(found) == 1
    assert named in found[0]


@pytest.mark.parametrize(
    "function",
    [
        # Whole numbers add up to the same in any order.
        lambda out, ids, x: out.long().index_add(0, ids, x.long()),
        # Sorted by ATen first.
        lambda out, ids, x: out.scatter_add(0, ids[:, None].expand_as(x), x),
        lambda out, ids, x: out.index_put((ids[:50],), x[:50]),
        lambda out, ids, x: x.sum(0) + out.sum(0),
    ],
)
def test_code_that_does_not_is_not(function: Function, tmp_path: Path) -> None:
    assert find_atomic_sums(_compiled(function, tmp_path)) == ()
