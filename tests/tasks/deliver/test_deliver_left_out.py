"""Deliver: what of the original is not in the graph is no output, and is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import read_contract
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as judge
from handoff.tasks.intake.loading import read_delivery

X, LABEL = torch.randn(3, 4), torch.randn(3, 2)


class Trained(nn.Module):
    """Scores `[N, 2]`, and what training makes of them."""

    def __init__(self, kind: str, *, traceable: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.criterion, self.other = nn.MSELoss(), nn.L1Loss()
        self.kind, self.traceable = kind, traceable

    def forward(self, x: Tensor, label: Tensor) -> Any:
        if not self.traceable and len(x) < 0:
            raise ValueError
        scores = self.layer(x)
        loss = self.criterion(scores, label)
        if self.kind == "weighed":
            loss = 0.5 * loss + self.other(scores, label)
        if self.kind == "tuple":
            return loss, scores
        return loss if self.kind == "alone" else {"scores": scores, "loss": loss}


@pytest.mark.parametrize("traceable", [True, False])
@pytest.mark.parametrize(
    ("kind", "path", "outputs"),
    [
        ("dictionary", "['loss']", ("['scores']",)),
        ("weighed", "['loss']", ("['scores']",)),
        ("tuple", "[0]", ("[1]",)),
    ],
)
def test_an_output_that_was_a_loss_is_none(
    kind: str, path: str, outputs: tuple[str, ...], traceable: bool, tmp_path: Path
) -> None:
    model = Trained(kind, traceable=traceable).eval()
    result = deliver(model, (X, LABEL), tmp_path / "toy", name="toy")
    contract = result.contract
    assert [spec.name for spec in contract.inputs] == ["x"]
    assert contract.structure.outputs == outputs
    assert contract.structure.losses == (path,)
    assert f"left out: the output {path}, which was a loss" in contract.left_out
    assert read_contract(tmp_path / "toy") == contract
    delivered = read_delivery(tmp_path / "toy")
    given = delivered.module(X)
    (scores,) = given if isinstance(given, tuple) else (given,)
    torch.testing.assert_close(scores, model.layer(X))
    assert len(delivered.cases[0].outputs or ()) == 1


def test_a_model_that_gives_its_loss_alone_gives_what_went_into_it(tmp_path: Path) -> None:
    model = Trained("alone").eval()
    contract = deliver(model, (X, LABEL), tmp_path / "toy", name="toy").contract
    assert contract.structure.losses == ()
    torch.testing.assert_close(read_delivery(tmp_path / "toy").module(X), model.layer(X))


def test_what_was_left_out_and_fixed_is_a_finding(tmp_path: Path) -> None:
    class Flagged(Trained):
        def forward(self, x: Tensor, label: Tensor, normalize: bool = False) -> Any:
            given = super().forward(x, label)
            return {**given, "scores": given["scores"].softmax(-1)} if normalize else given

    deliver(Flagged("dictionary").eval(), (X, LABEL, True), tmp_path / "toy", name="toy")
    judged = judge(TraceabilityJob(tmp_path / "toy"))
    assert judged.verdict == "sound"
    messages = {finding.message for finding in judged.findings}
    assert "not in the graph: the output ['loss'], which was a loss" in messages
    assert any(text.startswith("normalize = True, as in the example's call") for text in messages)


def test_a_loss_that_is_computed_by_a_function_is_an_output_like_any(tmp_path: Path) -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor, label: Tensor) -> dict[str, Tensor]:
            scores = self.layer(x)
            return {"scores": scores, "error": nn.functional.mse_loss(scores, label)}

    contract = deliver(
        Scored().eval(), (X, LABEL), tmp_path / "toy", name="toy", batch_invariant=False
    ).contract
    assert contract.structure.outputs == ("['scores']", "['error']")
    assert contract.left_out == ()
