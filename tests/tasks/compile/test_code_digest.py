"""Packages of the same code and other weights are distinguished from those whose weights matter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from handoff.artifacts.digest import digest_bytes
from handoff.tasks.compile.caching.cache import digest_code
from tests.tasks.optimize.passes.exporting import export

CODE = digest_bytes(b"the library with holes")


class Ranker(nn.Module):
    """A linear layer, a table of places to read, and a counter that nothing is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 500)
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("counted", torch.tensor(0))
        self.order: Tensor
        self.counted: Tensor

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x)
        return scores[:, self.order]


def code_of(seed: int = 0, *, order: int = 2, counted: int = 0, tiny: int = 0) -> str:
    torch.manual_seed(seed)
    module = Ranker()
    module.order[0], module.counted[...] = order, counted
    with torch.no_grad():
        module.linear.weight.view(-1)[:tiny] = 1e-40
    return digest_code(CODE, export(module, torch.randn(4, 8)))


def test_other_numbers_are_the_same_code() -> None:
    assert code_of(0) == code_of(1)


def test_whole_numbers_that_something_is_computed_from_are_part_of_the_code() -> None:
    assert code_of(order=1) != code_of(order=2)
    assert code_of(counted=1) == code_of(counted=2)


def test_many_subnormal_numbers_are_slow_and_a_few_are_not() -> None:
    assert code_of(tiny=4) == code_of(tiny=0)
    assert code_of(tiny=5) == ""


def test_another_library_is_other_code() -> None:
    program = export(Ranker(), torch.randn(4, 8))
    assert digest_code(digest_bytes(b"another"), program) != digest_code(CODE, program)
