"""What is served comes with the delivery, once each, for int8 to choose its ranges by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import CALIBRATION_FILE
from handoff.artifacts.errors import UsageProblem
from handoff.tasks.deliver import datasets
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.calibration import choose_calibration


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["x"]) + batch["y"]  # type: ignore[no-any-return]


def example(rows: int, seed: int = 0) -> tuple[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(seed)
    return ({"x": torch.randn(rows, 4, generator=made), "y": torch.ones(rows, 1)},)


def test_batches_are_kept_once_each_by_the_inputs_names(tmp_path: Path) -> None:
    given = [example(3, 1), example(5, 2), example(3, 1)]
    deliver(Scores(), example(2), tmp_path / "d", name="scores", calibration=given)
    loaded = read_delivery(tmp_path / "d")
    assert [tuple(x.shape) for x, _ in loaded.calibration] == [(3, 4), (5, 4)]
    assert torch.equal(loaded.calibration[1][0], given[1][0]["x"])
    found = choose_calibration(loaded)
    assert found.batches == loaded.calibration
    assert found.source == "ranges of 2 batches of calibration.safetensors"


def test_without_any_the_examples_are_taken_and_that_is_said(tmp_path: Path) -> None:
    deliver(Scores(), example(2), tmp_path / "d", name="scores")
    assert not (tmp_path / "d" / CALIBRATION_FILE).exists()
    found = choose_calibration(read_delivery(tmp_path / "d"))
    assert torch.equal(found.batches[0][0], example(2)[0]["x"])
    assert "examples alone: deliver(..., calibration=batches) brings more" in found.source


def test_where_sizes_are_fixed_only_batches_of_those_are_kept(tmp_path: Path) -> None:
    deliver(
        Scores(), example(2), tmp_path / "d", name="scores", dynamic={}, calibration=[example(2, 3)]
    )
    assert len(read_delivery(tmp_path / "d").calibration) == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([torch.zeros(2, 4)], "batch 0 .*expected a tuple of forward's arguments.*, got a Tensor"),
        (["x"], "batch 0 .*expected a tuple of forward's arguments.*, got a str"),
        ([{"ids": torch.zeros(2, 4)}], "batch 0 .* forward.batch.*missing a required argument"),
        ([example(2), ({"x": torch.zeros(2, 4)},)], "batch 1 .*expected the tensors"),
    ],
)
def test_what_is_no_call_of_forward_is_reported(
    given: Sequence[Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=match):
        deliver(Scores(), example(2), tmp_path / "d", name="scores", calibration=given)
    assert not (tmp_path / "d").exists()


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        found: Tensor = self.layer(self.table(ids)) * scale
        return found if mask is None else found * mask[..., None]


def tokens(rows: int, seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {"ids": torch.randint(9, (rows, 3), generator=made), "mask": torch.ones(rows, 3)}


def test_what_forward_takes_by_name_comes_by_name_in_each_batch(tmp_path: Path) -> None:
    given = [tokens(3, 1), tokens(5, 2)]
    deliver(
        Masked(), (), tmp_path / "d", name="masked",
        example_kwargs={**tokens(2, 0), "scale": 2.0}, calibration=given,
        evaluation=[(tokens(4, 3), None)], metric="cosine",
    )  # fmt: skip
    loaded = read_delivery(tmp_path / "d")
    assert [tuple(ids.shape) for ids, _ in loaded.calibration] == [(3, 3), (5, 3)]
    for (ids, mask), wanted in zip(loaded.calibration, given, strict=True):
        assert torch.equal(ids, wanted["ids"])
        assert torch.equal(mask, wanted["mask"])
    assert torch.equal(loaded.evaluation[0].inputs[0], tokens(4, 3)["ids"])


def test_a_name_that_the_example_gave_in_its_place_may_be_used(tmp_path: Path) -> None:
    example_inputs = tuple(tokens(2, 0).values())
    deliver(
        Masked(), example_inputs, tmp_path / "d", name="masked",
        calibration=[tokens(3, 1), tuple(tokens(3, 2).values())],
    )  # fmt: skip
    assert len(read_delivery(tmp_path / "d").calibration) == 2


def test_more_than_a_delivery_holds_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "CALIBRATION_BATCHES", 2)
    many = [example(2, seed) for seed in range(3)]
    with pytest.raises(UsageProblem, match="at most 2 batches"):
        deliver(Scores(), example(2), tmp_path / "d", name="scores", calibration=many)
    deliver(Scores(), example(2), tmp_path / "d", name="scores", calibration=many[:2])
