"""Calibration batches of a delivery: held against its contract, bounded, inputs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from handoff.artifacts.delivery import contract as contracts
from handoff.artifacts.delivery.contract import CALIBRATION_FILE, DeliveryContract, ModelSection
from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake import examples
from handoff.tasks.intake.examples import read_calibration
from tests.tasks.intake.models import spec

CONTRACT = DeliveryContract(
    ModelSection("toy"),
    (spec("b", "float32", "N", 4), spec("a", "int64", "N")),
    dimensions={"N": Dimension(1, 8)},
)


def batch(number: int, rows: int) -> dict[str, torch.Tensor]:
    return {
        f"{number}/inputs/a": torch.arange(rows),
        f"{number}/inputs/b": torch.randn(rows, 4),
    }


def test_a_delivery_may_have_none(tmp_path: Path) -> None:
    assert read_calibration(tmp_path, CONTRACT) == ()


def test_batches_come_in_order_of_any_declared_size(tmp_path: Path) -> None:
    written = batch(0, 2) | batch(1, 8)
    save_file(written, tmp_path / CALIBRATION_FILE)
    first, second = read_calibration(tmp_path, CONTRACT)
    assert torch.equal(first[0], written["0/inputs/b"])
    assert torch.equal(second[1], written["1/inputs/a"])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"0/outputs/0": torch.zeros(1)}, "expected inputs alone"),
        ({"0/inputs/c": torch.zeros(1)}, "the inputs b, a in case 0"),
        ({"0/inputs/a": torch.zeros(2)}, "a of int64 in case 0"),
        (batch(0, 9), "9 instead of N from 1"),
        (batch(2, 3), "numbered from 0"),
    ],
)
def test_what_does_not_fit_the_contract_is_reported_by_the_files_name(
    changes: dict[str, torch.Tensor], match: str, tmp_path: Path
) -> None:
    save_file(batch(0, 2) | changes, tmp_path / CALIBRATION_FILE)
    with pytest.raises(DeliveryUnreadable, match=match) as caught:
        read_calibration(tmp_path, CONTRACT)
    assert caught.value.where == CALIBRATION_FILE


def test_a_damaged_file_and_too_many_batches_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CALIBRATION_FILE).write_bytes(b"\x09\0\0\0\0\0\0\0{")
    with pytest.raises(DeliveryUnreadable, match="a safetensors file"):
        read_calibration(tmp_path, CONTRACT)
    many = {
        key: tensor for number in range(contracts.CALIBRATION_BATCHES + 1)
        for key, tensor in batch(number, 1).items()
    }  # fmt: skip
    save_file(many, tmp_path / CALIBRATION_FILE)
    with pytest.raises(DeliveryUnreadable, match="at most 256 batches"):
        read_calibration(tmp_path, CONTRACT)
    monkeypatch.setattr(examples, "CALIBRATION_BYTES", 1000)
    with pytest.raises(DeliveryUnreadable, match="at most 1000 bytes"):
        read_calibration(tmp_path, CONTRACT)
