from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from handoff.artifacts.delivery.contract import EXAMPLES_FILE, DeliveryContract, ModelSection
from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.examples import read_examples
from tests.tasks.intake.models import spec

CONTRACT = DeliveryContract(
    ModelSection("toy"),
    (spec("b", "float32", "N", 4), spec("a", "int64", "N")),
    dimensions={"N": Dimension(1, 8)},
)


def tensors(case: int, batch: int) -> dict[str, torch.Tensor]:
    return {
        f"{case}/inputs/a": torch.arange(batch),
        f"{case}/inputs/b": torch.randn(batch, 4),
        f"{case}/outputs/1": torch.zeros(1),
        f"{case}/outputs/0": torch.ones(1),
    }


def test_a_delivery_without_examples_has_none(tmp_path: Path) -> None:
    assert read_examples(tmp_path, CONTRACT) == ()


def test_cases_come_in_order_and_inputs_in_that_of_the_contract(tmp_path: Path) -> None:
    written = tensors(0, 2) | {k: v for k, v in tensors(1, 3).items() if "inputs" in k}
    save_file(written, tmp_path / EXAMPLES_FILE)
    first, second = read_examples(tmp_path, CONTRACT)
    assert torch.equal(first.inputs[0], written["0/inputs/b"])
    assert torch.equal(first.inputs[1], written["0/inputs/a"])
    assert first.outputs is not None
    assert [float(output) for output in first.outputs] == [1, 0]
    assert second.outputs is None


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"0/inputs/a": None}, "the inputs b, a in case 0"),
        ({"0/inputs/c": torch.zeros(1)}, "the inputs b, a in case 0"),
        ({"0/inputs/a": torch.zeros(2)}, "a of int64 in case 0, got float32"),
        ({"0/inputs/a": torch.arange(3)}, "3 instead of N = 2"),
        ({"0/inputs/b": torch.zeros(2, 5)}, "instead of shape"),
        ({"2/inputs/a": torch.arange(3)}, "numbered from 0"),
        ({"1/outputs/0": torch.arange(3)}, "numbered from 0"),
        ({"0/outputs/7": torch.arange(3)}, "outputs numbered from 0"),
        ({"0/outputs/x": torch.arange(3)}, "names such as"),
        ({"../x": torch.arange(3)}, "names such as"),
    ],
)
def test_refuses_examples_that_do_not_fit(
    changes: dict[str, torch.Tensor | None], match: str, tmp_path: Path
) -> None:
    changed = {**tensors(0, 2), **changes}
    save_file({k: v for k, v in changed.items() if v is not None}, tmp_path / EXAMPLES_FILE)
    with pytest.raises(DeliveryUnreadable, match=match):
        read_examples(tmp_path, CONTRACT)


def test_refuses_examples_outside_the_declared_range(tmp_path: Path) -> None:
    save_file(tensors(0, 9), tmp_path / EXAMPLES_FILE)
    with pytest.raises(DeliveryUnreadable, match="9 instead of N from 1 to 8"):
        read_examples(tmp_path, CONTRACT)


@pytest.mark.parametrize("size", [0, 4, 30, 200])
def test_refuses_a_cut_file(size: int, tmp_path: Path) -> None:
    save_file(tensors(0, 2), tmp_path / EXAMPLES_FILE)
    path = tmp_path / EXAMPLES_FILE
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DeliveryUnreadable, match=r"examples\.safetensors"):
        read_examples(tmp_path, CONTRACT)
