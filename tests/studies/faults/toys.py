"""The models that faults are planted in, with their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tests.studies.faults import models
from tests.studies.faults.releasing import ToyModel

Inputs = Callable[[torch.dtype], Mapping[str, Tensor]]


def floats(*shape: int, names: tuple[str, ...] = ("x",)) -> Inputs:
    """Return what draws inputs of that shape behind a batch of 6, one for each name."""
    return lambda dtype: {name: torch.randn(6, *shape).to(dtype) for name in names}


def ids(length: int, count: int) -> Inputs:
    """Return what draws ids below `count`, the least and the largest of which occur."""

    def draw(_: torch.dtype) -> Mapping[str, Tensor]:
        drawn = torch.randint(count, (6, length))
        drawn[0, :2] = torch.tensor([0, count - 1])
        return {"ids": drawn}

    return draw


def masked(dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Return `[6, 6, 16]` and which of the six places count."""
    return {"x": torch.randn(6, 6, 16).to(dtype), "mask": torch.rand(6, 6) < 0.7}


TOYS: dict[str, ToyModel] = {
    toy.name: toy
    for toy in (
        ToyModel("perceptron", models.Perceptron, floats(8)),
        ToyModel("attention", models.Attention, masked),
        ToyModel("arithmetic", models.Arithmetic, floats(6, 6, names=("x", "y"))),
        ToyModel("discrete", models.Discrete, ids(7, 10)),
        ToyModel("embedded", models.Embedded, ids(7, 50)),
        ToyModel("large-table", models.LargeTable, ids(7, 10_000)),
        ToyModel("convolutional", models.Convolutional, floats(3, 11, 11)),
        ToyModel("recurrent", models.Recurrent, floats(9, 4)),
        ToyModel("reductions", models.Reductions, floats(1003)),
        ToyModel("whole-batch", models.WholeBatch, floats(1003)),
        ToyModel("elementwise", models.Elementwise, floats(11)),
    )
}
