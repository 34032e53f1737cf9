"""A model of the corpus, and the inputs that several of them take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import Lineage
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
VOCABULARY = 2000


@dataclass(frozen=True)
class CorpusModel:
    """A model's name and kind, its builder, its inputs for a batch, and the batch of its example.

    `options` are further arguments of `deliver`.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    batch: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> tuple[nn.Module, Inputs]:
        """Return the model, ready to be delivered, and its example; each time the same."""
        torch.manual_seed(0)
        module = self.build().eval().requires_grad_(False)
        torch.manual_seed(self.batch)
        return module, self.inputs(self.batch)

    def others(self, count: int) -> list[Inputs]:
        """Return so many other inputs of the example's sizes; each time the same."""
        batches = []
        for seed in range(1000, 1000 + count):
            torch.manual_seed(seed)
            batches.append(self.inputs(self.batch))
        return batches

    def deliver(
        self, module: nn.Module, example: Inputs, folder: Path, **more: Any
    ) -> DeliverResult:
        """Deliver what `make` has made to `folder`; `more` are further arguments of `deliver`."""
        args, kwargs = example
        return deliver(
            module, args, folder, name=self.name.replace("_", "-"), example_kwargs=kwargs,
            lineage=Lineage("https://example.org/models", "0123abc"), **self.options, **more,
        )  # fmt: skip


def ids(*shape: int, high: int = VOCABULARY) -> Tensor:
    """Return random ids from 1 to `high - 1`."""
    return torch.randint(1, high, shape)
