"""A contract that declares more than the model takes: its owner is informed, and of what."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff import deliver
from handoff.artifacts.errors import DeliveryUnsound
from handoff.artifacts.recipe.recipe import VerifyPlan
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.verify.messages import ReferenceJob
from handoff.tasks.verify.reference import run as refer


class Positions(nn.Module):
    """Has as many places as its table has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        placed: Tensor = x + self.places(torch.arange(x.shape[1]))
        return placed


def run_reference_cases(folder: Path, longest: int) -> tuple[str, ...]:
    deliver(
        Positions().eval(), (torch.randn(2, 16, 4),), folder / "delivery", name="positions",
        dynamic={"x": {0: "batch", 1: "length"}}, dimensions={"length": (1, longest)},
    )  # fmt: skip
    take_in(IntakeJob(folder / "delivery", folder / "staging"))
    job = ReferenceJob(folder / "staging", None, VerifyPlan(seeds=1), folder / "reference.pt")
    return refer(job).cases


def test_a_length_beyond_the_table_of_places_is_named_as_the_delivery_s_fault(
    tmp_path: Path,
) -> None:
    with pytest.raises(DeliveryUnsound) as caught:
        run_reference_cases(tmp_path, 512)
    assert "fails at batch=3 length=512" in str(caught.value)
    assert "IndexError: index out of range" in str(caught.value)
    assert "dimensions={NAME: (MIN, MAX)}" in str(caught.value)


def test_the_longest_that_it_has_places_for_is_compared(tmp_path: Path) -> None:
    assert any("length=64" in case for case in run_reference_cases(tmp_path, 64))
