"""The gate can fail: a handful of the seeded faults, each caught; `make faults` has them all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.tasks.optimize.programs import load_program, save_program
from handoff.tasks.verify.messages import VerifyResult
from tests.studies.faults.kinds import KINDS, Bench, KindRow
from tests.studies.faults.planting import (
    GraphFault,
    NotPlanted,
    calls_of,
    plant_in_graph,
    with_argument,
    with_changed,
    with_keyword,
)
from tests.tasks.optimize.passes.exporting import export

# Two models, so that little is compiled: in one the weights and the graph are wrong, in the other
# the code.
CHOSEN = (
    "transposed weight", "wrong eps in batch norm",
    "dropped epilogue", "tail masked one short", "batch bounded",
)  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Return a bench that refuses to judge by a model whose right package isn't accepted."""
    made = Bench(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


@pytest.mark.compile
@pytest.mark.parametrize("name", CHOSEN)
def test_a_seeded_fault_is_caught(bench: Bench, name: str) -> None:
    (fault,) = [fault for fault in KINDS if fault.name == name]
    row = bench.judge(fault)
    assert row.caught
    assert not re.match("refused before|verify crashed", row.summary)
    assert row.cases


@pytest.mark.compile
def test_a_fault_of_no_size_is_not_caught(bench: Bench) -> None:
    # The gate is no comparison of bytes: what is within rounding passes.
    fault = GraphFault(
        "none", "A factor is what it was, to seven digits.", "perceptron",
        with_changed("last.bias", lambda bias: bias * (1.0 + 1e-7)),
    )  # fmt: skip
    assert bench.judge(fault).summary == "**not caught**"


def test_what_changes_nothing_is_not_planted(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    original = save_program(export(model, torch.randn(5, 4)), tmp_path / "original.pt2")
    planted = tmp_path / "planted.pt2"
    same = GraphFault("same", "", "", with_argument("aten.layer_norm.default", 4, 1e-5))
    with pytest.raises(NotPlanted, match="same: the graph is as it was"):
        plant_in_graph(same, original, planted)
    # Saving leaves out what the operator doesn't take.
    unknown = GraphFault("unknown", "", "", with_keyword("aten.linear.default", "correction", 0))
    with pytest.raises(NotPlanted, match="unknown: the graph is as it was"):
        plant_in_graph(unknown, original, planted)
    absent = GraphFault("absent", "", "", with_argument("aten.softmax.int", 1, 0))
    with pytest.raises(NotPlanted, match=r"a call of aten\.softmax\.int"):
        plant_in_graph(absent, original, planted)
    other = GraphFault("other", "", "", with_argument("aten.layer_norm.default", 4, 1e-3))
    plant_in_graph(other, original, planted)
    assert calls_of(load_program(planted), "aten.layer_norm.default")[0].args[4] == 1e-3


def test_what_was_not_planted_is_not_counted_as_caught() -> None:
    row = KindRow(KINDS[0], VerifyResult((), ()), "the graph is as it was")
    assert not row.caught
    assert "not planted" in row.summary


def test_kinds_have_names_of_their_own() -> None:
    names = [fault.name for fault in KINDS]
    assert len(names) == len(set(names)) >= 24
