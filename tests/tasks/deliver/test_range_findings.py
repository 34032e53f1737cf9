"""Inspect: what the contract says of whole numbers, beside what the graph does with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import CONTRACT_FILE, format_contract, read_contract
from handoff.artifacts.delivery.signature import DECLARED, TensorSpec
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as judge
from handoff.tasks.intake.loading import read_delivery
from tests.tasks.deliveries import write_delivery

IDS = torch.tensor([[21, 300, 821], [44, 45, 46]])


class Tables(nn.Module):
    """Ids `[N, 3]`: the first two of a table of 5000 rows, the last of one of as many or fewer."""

    def __init__(self, last: int = 5000) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 4)
        self.last = self.words if last == 5000 else nn.Embedding(last, 4)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.words(ids[:, :2]).sum(1) + self.last(ids[:, 2])
        return found


def findings(folder: Path) -> dict[str, Finding]:
    return {one.code: one for one in judge(TraceabilityJob(folder)).findings}


def with_range(folder: Path, low: float | None, high: float | None, origin: str = "") -> Path:
    contract = read_contract(folder)
    specs = [replace(spec, low=low, high=high, origin=origin) for spec in contract.inputs]
    text = format_contract(replace(contract, inputs=tuple(specs)))
    (folder / CONTRACT_FILE).write_text(text)
    return folder


def test_a_contract_with_the_examples_ids_is_answered_with_what_the_table_holds(
    tmp_path: Path,
) -> None:
    folder = write_delivery(tmp_path / "toy", Tables(), {"ids": IDS})
    finding = findings(folder)["narrow-range"]
    assert finding.severity == "limit"
    assert "ids takes 21 to 821 by the contract, and the model 0 to 4999" in finding.message
    assert "table words of 5000 rows" in finding.message


@pytest.mark.parametrize(("low", "high", "origin"), [(0, 4999, ""), (21, 821, DECLARED)])
def test_a_contract_with_all_ids_or_with_what_somebody_declared_is_sound(
    low: int, high: int, origin: str, tmp_path: Path
) -> None:
    folder = write_delivery(tmp_path / "toy", Tables(), {"ids": IDS})
    assert not {"narrow-range", "guessed-range", "ids-beyond-table"} & set(
        findings(with_range(folder, low, high, origin))
    )


@pytest.mark.parametrize("origin", ["", DECLARED])
def test_ids_that_no_table_has_are_unsound_whoever_says_so(origin: str, tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", Tables(), {"ids": IDS})
    finding = findings(with_range(folder, 0, 5000, origin))["ids-beyond-table"]
    assert finding.severity == "unsound"
    assert "ids may be 5000 by the contract, and the model takes 0 to 4999" in finding.message


def test_whole_numbers_without_a_range_are_a_question(tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", Tables(), {"ids": IDS})
    finding = findings(with_range(folder, None, None))["guessed-range"]
    assert "nothing says which numbers ids may hold" in finding.message


def test_columns_of_different_tables_are_reported_by_deliver_and_by_inspect(tmp_path: Path) -> None:
    given = deliver(Tables(900).eval(), (IDS,), tmp_path / "toy", name="toy")
    (spec,) = given.contract.inputs
    assert (spec.low, spec.high) == (0, 899)
    assert any("the narrowest column's" in note for note in given.notes)
    finding = findings(tmp_path / "toy")["narrow-range"]
    assert "what other columns could take beyond is refused" in finding.message


def test_an_example_beyond_the_contract_is_refused(tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", Tables(), {"ids": IDS})
    with pytest.raises(DeliveryUnreadable, match="ids from 0 to 800 in case 0, got 21 to 821"):
        read_delivery(with_range(folder, 0, 800))


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "x" * 400])
def test_an_origin_is_a_short_printable_text(text: str) -> None:
    with pytest.raises(ValueError, match="printable characters as origin"):
        TensorSpec("ids", "int64", (3,), 0, 9, text)
