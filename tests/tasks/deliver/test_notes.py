"""Deliver notes, in a line each, what it has fixed: arguments, defaults, the mode."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver

X = torch.randn(4, 8)


class Scores(nn.Module):
    """Has arguments that are no inputs, and a part that training switches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)

    def forward(
        self, x: Tensor, mode: str = "plain", temperature: float = 2.0, mask: Tensor | None = None
    ) -> Tensor:
        scores: Tensor = self.drop(self.layer(x)) / temperature
        scores = -scores if mode == "negative" else scores
        return scores if mask is None else scores * mask


def delivered(model: nn.Module, folder: Path, *args: object, **keywords: object) -> DeliverResult:
    return deliver(model, args, folder / "toy", name="toy", example_kwargs=keywords)


def about(result: DeliverResult, words: str) -> list[str]:
    return [note for note in result.notes if words in note]


def test_defaults_and_values_of_the_example_are_reported_as_fixed(tmp_path: Path) -> None:
    result = delivered(Scores().eval(), tmp_path, X, "negative")
    (given,) = about(result, "as in the example's call")
    assert "mode = 'negative'" in given
    (default,) = about(result, "as forward's defaults")
    assert "temperature=2.0" in default
    assert "mode" not in default
    (absent,) = about(result, "leaves them None")
    assert absent.endswith(": mask")


def test_what_is_given_as_a_tensor_is_an_input_and_not_noted(tmp_path: Path) -> None:
    model = Scores().eval()
    mask, warm = torch.ones(4, 4), torch.full((4, 1), 3.0)
    result = delivered(model, tmp_path, X, temperature=warm, mask=mask)
    assert [spec.name for spec in result.contract.inputs] == ["x", "temperature", "mask"]
    assert not about(result, "temperature=")
    assert not about(result, "leaves them None")


def test_a_forward_without_such_arguments_has_no_notes(tmp_path: Path) -> None:
    result = delivered(nn.Linear(8, 4).eval(), tmp_path, X)
    assert not about(result, "fixed in the graph")
    assert not about(result, "evaluation mode")


def test_a_model_in_training_mode_is_reported_and_left_in_it(tmp_path: Path) -> None:
    model = Scores()
    result = delivered(model, tmp_path, X)
    assert about(result, "evaluation mode") == [
        "delivered in evaluation mode, as model.eval() sets it: the model was in training mode"
    ]
    assert model.training
    assert model.drop.training


def test_a_part_in_training_mode_is_named(tmp_path: Path) -> None:
    model = Scores().eval()
    model.drop.train()
    (note,) = about(delivered(model, tmp_path, X), "evaluation mode")
    assert note.endswith("parts of the model (Dropout) were in training mode")
