"""The reference: float64 beside eager, and never more at once than one case may take."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from handoff.artifacts.recipe.recipe import VerifyPlan
from handoff.tasks.intake import step as intake
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.verify import reference
from handoff.tasks.verify.float64 import run_in_float64
from handoff.tasks.verify.messages import ReferenceJob
from tests.tasks.deliveries import write_delivery


class Layer(nn.Module):
    """A layer and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.mark.parametrize(("parts", "most"), [(1, 1), (100, 2)])
def test_what_holds_much_is_run_in_float64_one_at_a_time(
    parts: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, module = torch.randn(4, 8), Layer().eval()
    intake.run(
        IntakeJob(write_delivery(tmp_path / "delivery", module, {"x": x}), tmp_path / "staging")
    )
    running, seen, lock = 0, [0], threading.Lock()

    def count(*arguments: Any) -> Any:
        nonlocal running
        with lock:
            running += 1
            seen.append(running)
        # Long enough that eager is done with all before.
        time.sleep(0.05)
        try:
            return run_in_float64(*arguments)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(reference, "run_in_float64", count)
    held = run_in_float64(torch.fx.symbolic_trace(module), (x,))[1]
    plan = VerifyPlan(seeds=9, max_bytes=parts * held)
    job = ReferenceJob(tmp_path / "staging", None, plan, tmp_path / "reference.pt")
    cases = reference.load_cases(reference.run(job).file)
    assert max(seen) == most
    # Each result is its own case's, whoever computed it.
    for case in cases:
        (exact,), _ = run_in_float64(torch.fx.symbolic_trace(module), case.inputs)
        torch.testing.assert_close(case.float64[0], exact, rtol=0, atol=0, equal_nan=True)
