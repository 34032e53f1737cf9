"""Samples with labels come with the delivery, and the metric that is to be computed of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import CONTRACT_FILE, read_contract
from handoff.artifacts.delivery.metric import EVALUATION_FILE, Metric
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem
from handoff.tasks.deliver import datasets
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import read_delivery


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, w: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(x) * w, "size": x.square().mean(1, keepdim=True)}


def samples(rows: int, seed: int = 0) -> tuple[tuple[Tensor, Tensor], Tensor]:
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=made)
    return (x, torch.ones(rows, 1)), torch.randint(3, (rows,), generator=made)


EXAMPLE = samples(2)[0]


def written(folder: Path, **options: Any) -> tuple[str, ...]:
    torch.manual_seed(0)
    return deliver(TwoHeads(), EXAMPLE, folder, name="heads", **options).notes


def test_samples_are_kept_in_order_with_their_labels_and_the_metric(tmp_path: Path) -> None:
    given = [samples(3, 1), samples(5, 2), samples(3, 1)]
    notes = written(tmp_path / "d", evaluation=given, metric="top-1")
    loaded = read_delivery(tmp_path / "d")
    assert loaded.contract.metric == Metric("top-1")
    assert [len(one.inputs[0]) for one in loaded.evaluation] == [3, 5, 3]
    for one, ((x, _), labels) in zip(loaded.evaluation, given, strict=True):
        assert torch.equal(one.inputs[0], x)
        assert one.labels is not None
        assert torch.equal(one.labels, labels)
    logits = [loaded.module(*inputs)[0] for inputs, _ in given]
    right = [(z.argmax(1) == own).double() for z, (_, own) in zip(logits, given, strict=True)]
    value = float(torch.cat(right).mean())
    assert f"top-1 of 11 samples is {value:.4g} by the model itself" in notes


def test_a_metric_may_be_of_another_output_and_need_no_labels(tmp_path: Path) -> None:
    metric = Metric("cosine", output="size")
    written(tmp_path / "d", evaluation=[(samples(3)[0], None)], metric=metric)
    loaded = read_delivery(tmp_path / "d")
    assert loaded.contract.metric == metric
    assert loaded.evaluation[0].labels is None


def test_a_delivery_may_have_none(tmp_path: Path) -> None:
    written(tmp_path / "d")
    assert read_contract(tmp_path / "d").metric is None
    assert read_delivery(tmp_path / "d").evaluation == ()
    assert not (tmp_path / "d" / EVALUATION_FILE).exists()


def test_where_sizes_are_fixed_only_samples_of_those_are_kept(tmp_path: Path) -> None:
    given = [samples(2, 1), samples(2, 2)]
    written(tmp_path / "d", evaluation=given, metric="top-1", dynamic={})
    assert len(read_delivery(tmp_path / "d").evaluation) == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"evaluation": [samples(3)]}, "the metric that they are for, got samples alone"),
        ({"metric": "top-1"}, "got a metric alone"),
        ({"evaluation": [samples(1025)], "metric": "top-1"},
         "batch 0 of the evaluation .*got x: 1025 instead of batch from 1 to 1024. Give smaller"),
        ({"calibration": [samples(3)[0], samples(1025)[0]]}, "batch 1 of the calibration"),
        ({"evaluation": [samples(3)], "metric": "f1"}, "a metric among top-K, auc.*got 'f1'"),
        ({"evaluation": [samples(3)[0][0]], "metric": "top-1"}, "batch 0 .*a pair of forward's"),
        ({"evaluation": [(EXAMPLE, [1, 2])], "metric": "top-1"}, "labels in a tensor, or None"),
        ({"evaluation": [samples(3), ((EXAMPLE[0],), None)], "metric": "top-1"}, "batch 1|forward"),
        ({"evaluation": [(EXAMPLE, torch.tensor([0, 7]))], "metric": "top-1"},
         "top-1 can't be computed .*labels from 0 to 2, got 0 to 7"),
        ({"evaluation": [samples(3)], "metric": Metric("top-1", output="other")},
         "one of logits, size, got 'other'"),
    ],
)  # fmt: skip
def test_what_is_no_evaluation_is_reported(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=match):
        written(tmp_path / "d", **options)
    assert not (tmp_path / "d").exists()


def test_more_than_a_delivery_holds_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "EVALUATION_BATCHES", 2)
    many = [samples(2, seed) for seed in range(3)]
    with pytest.raises(UsageProblem, match="at most 2 batches"):
        written(tmp_path / "d", evaluation=many, metric="top-1")
    written(tmp_path / "d", evaluation=many[:2], metric="top-1")


def _without_metric(folder: Path) -> None:
    contract = folder / CONTRACT_FILE
    text = contract.read_text(encoding="utf-8")
    contract.write_text(text.replace('[metric]\nname = "top-1"\noutput = ""\n', ""), "utf-8")


def _without_samples(folder: Path) -> None:
    (folder / EVALUATION_FILE).unlink()


def _without_labels(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    kept = {k: v for k, v in load_file(folder / EVALUATION_FILE).items() if "labels" not in k}
    save_file(kept, folder / EVALUATION_FILE)


def _damaged(folder: Path) -> None:
    (folder / EVALUATION_FILE).write_bytes(b"\x09\0\0\0\0\0\0\0{")


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (_without_metric, r"a \[metric\] in the contract, got samples alone"),
        (_without_samples, "samples for the contract's metric, got neither"),
        (_without_labels, "labels for each case, which top-1 needs"),
        (_damaged, "a safetensors file"),
    ],
)
def test_an_evaluation_that_is_not_whole_is_refused_at_intake(
    spoil: Callable[[Path], None], match: str, tmp_path: Path
) -> None:
    written(tmp_path / "d", evaluation=[samples(3)], metric="top-1")
    read_delivery(tmp_path / "d")
    spoil(tmp_path / "d")
    with pytest.raises(DeliveryUnreadable, match=match) as caught:
        read_delivery(tmp_path / "d")
    assert caught.value.where == EVALUATION_FILE
