"""Which generated code adds floating-point numbers in an order that threads decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.tasks.compile.reading.cpp_source import atomic_sums_in, find_atomic_sums
from tests.tasks.compile.generated import generate
from tests.tasks.compile.torch_compilation import compile_as_torch_does

pytestmark = pytest.mark.compile

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Adds(nn.Module):
    """Functions each in a kernel of its own: oneDNN or BLAS multiplies before the next begins."""

    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, out: Tensor, ids: Tensor, x: Tensor, weights: Tensor) -> list[Tensor]:
        made = []
        for function in self.functions:
            made.append(function(out, ids, x))
            x = torch.mm(x + made[-1].float().sum(), weights)
        return made


def _program(functions: Sequence[Function]) -> ExportedProgram:
    """Return the program that computes all of them."""
    inputs = torch.zeros(50, 16), torch.randint(50, (3000,)), torch.randn(3000, 16)
    return torch.export.export(_Adds(functions), (*inputs, torch.randn(16, 16)))


def test_code_that_adds_atomically_is_found(tmp_path: Path) -> None:
    functions: list[tuple[str, Function]] = [
        ("index_add", lambda out, ids, x: out.index_add(0, ids, x)),
        ("index_add", lambda out, ids, x: out.half().index_add(0, ids, x.half())),
        ("index_reduce", lambda out, ids, x: out.index_reduce(0, ids, x, "mean")),
        ("put", lambda out, ids, x: out.put(ids, x[:, 0], accumulate=True)),
        (
            "aten::index_put",
            lambda out, ids, x: out.index_put((out[:, 0] == 0, ids[0]), x[0, 0], accumulate=True),
        ),
        (
            "col2im",
            lambda out, ids, x: nn.functional.fold(x[:240].reshape(1, 240, 16), (7, 7), (4, 4)),
        ),
    ]
    program = _program([function for _, function in functions])
    found = find_atomic_sums(compile_as_torch_does(program, tmp_path / "package"))
    # Each in another kernel, of which none is listed twice.
    assert len(found) == len(functions)
    for name, _ in functions:
        assert any(name in one for one in found), name


def test_code_that_does_not_is_not() -> None:
    functions: list[Function] = [
        # Whole numbers add up to the same in any order.
        lambda out, ids, x: out.long().index_add(0, ids, x.long()),
        # Sorted by ATen first.
        lambda out, ids, x: out.scatter_add(0, ids[:, None].expand_as(x), x),
        lambda out, ids, x: out.index_put((ids[:50],), x[:50]),
        lambda out, ids, x: x.sum(0) + out.sum(0),
    ]
    texts = generate(_program(functions))
    # Threads share the work in what is read.
    assert any("at::parallel" in text or "#pragma omp" in text for text in texts)
    assert [one for text in texts for one in atomic_sums_in(text)] == []
