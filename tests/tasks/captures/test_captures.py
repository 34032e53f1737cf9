"""The capture table: what each technology makes of models that lead one or the other astray."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.captures import (
    CAPTURE_METHODS,
    CaptureMethod,
    CaptureRow,
    recommend,
)
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.recipe.recipe import Recipe
from handoff.infra.commands import inspection
from handoff.infra.commands.inspection import inspect_delivery, judge_delivery
from handoff.tasks import steps
from handoff.tasks.captures import rows as capture_rows
from handoff.tasks.captures.messages import CaptureJob
from handoff.tasks.captures.step import run, try_method
from tests.tasks.deliveries import write_delivery

SIGNATURE = ModelSignature(
    (TensorSpec("x", "float32", ("batch", 8)),), dimensions={"batch": Dimension(1, 64)}
)
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(x))


class BranchesOnValue(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class BakesLength(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / float(len(x))


class Breaks(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()
        return y * 2.0


def row(method: CaptureMethod, module: nn.Module) -> CaptureRow:
    torch._dynamo.reset()
    return try_method(method, module.eval(), SIGNATURE, (X,))


ALL = [method for method in CAPTURE_METHODS if method not in ("torch.onnx", "lazy tensors")]


@pytest.mark.parametrize("method", ALL)
def test_a_plain_model_is_captured_and_right_by_every_road(method: CaptureMethod) -> None:
    got = row(method, Plain())
    assert got.is_right
    assert got.tried == 6
    assert got.speedup_low <= got.speedup <= got.speedup_high
    assert got.max_abs < 1e-5


def test_lazy_tensors_are_right_or_said_to_be_missing() -> None:
    got = row("lazy tensors", Plain())
    assert got.is_right or "has no lazy tensors" in got.reason


def test_onnx_is_right_or_says_what_is_not_installed() -> None:
    got = row("torch.onnx", Plain())
    assert got.is_right or "not installed: onnx" in got.reason


@pytest.mark.parametrize("method", ["torch.fx", "torch.export", "torch.export strict"])
def test_a_branch_on_a_value_is_not_captured(method: CaptureMethod) -> None:
    got = row(method, BranchesOnValue())
    assert not got.captured
    assert got.reason


def test_a_trace_of_a_branch_is_wrong_where_the_other_branch_is_right() -> None:
    got = row("torch.jit.trace", BranchesOnValue())
    assert got.captured
    assert not got.is_right
    assert any("a difference of" in wrong for wrong in got.wrong)
    assert got.speedup == 0.0


def test_a_length_that_a_trace_bakes_in_is_reported_by_its_size() -> None:
    got = row("torch.jit.trace", BakesLength())
    assert [wrong.partition(":")[0] for wrong in got.wrong] == [
        "at batch = 1", "at batch = 2", "at batch = 5", "at batch = 17"
    ]  # fmt: skip


def test_dynamo_reports_graph_breaks_with_reason_and_line() -> None:
    got = row("torch.compile", Breaks())
    assert got.is_right
    (graph_break,) = got.breaks
    file, _, line = graph_break.rpartition(" at ")[2].rpartition(":")
    assert file.endswith("test_captures.py")
    assert "graph_break()" in Path(__file__).read_text().splitlines()[int(line) - 1]


def test_a_model_that_nothing_can_capture_is_left_in_eager() -> None:
    rows = tuple(row(method, BranchesOnValue()) for method in ALL[:3])
    recommendation = recommend(rows)
    assert recommendation.startswith(
        "No capture that can be compiled ahead of time: torch.export: "
    )
    assert "serve it in eager" in recommendation


GOOD = {"captured": True, "tried": 4}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("torch.export", GOOD)], "torch.export captures it and is right on all 4 other inputs"),
        (
            [("torch.export", {"captured": False, "reason": "no"}), ("torch.export strict", GOOD)],
            "torch.export strict captures it",
        ),
        (
            [("torch.export", GOOD), ("torch.jit.trace", {**GOOD, "wrong": ("at batch = 1: x",)})],
            "not torch.jit.trace, which is wrong at batch = 1: x",
        ),
        (
            [("torch.export", {**GOOD, "wrong": ("at batch = 1: x",)}), ("torch.jit.script", GOOD)],
            "torch.export: wrong at batch = 1: x; torch.jit.script is right on all 4 other inputs",
        ),
        (
            [("torch.export", {"captured": False, "reason": "no"}),
             ("torch.compile", {**GOOD, "breaks": ("print at m.py:3",)})],
            "Dynamo breaks the graph: print at m.py:3; torch.compile is right",
        ),
    ],
)  # fmt: skip
def test_the_recommendation_follows_what_was_measured(
    rows: list[tuple[CaptureMethod, dict[str, Any]]], expected: str
) -> None:
    assert expected in recommend(tuple(CaptureRow(method, **fields) for method, fields in rows))


def test_a_delivery_is_captured_from_its_staging(tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", Plain().eval(), {"x": X})
    assert run(CaptureJob(folder, "torch.export")).is_right


@pytest.mark.compile
def test_inspect_prints_the_table_and_crashes_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_delivery(tmp_path / "toy", Plain().eval(), {"x": X})
    judged: list[Any] = []

    def judge_once(delivery: Path, staging: Path, recipe: Recipe) -> Any:
        if judged:
            shutil.copytree(delivery, staging)
        else:
            judged.append(judge_delivery(delivery, staging, recipe))
        return judged[0]

    monkeypatch.setattr(inspection, "judge_delivery", judge_once)
    monkeypatch.setattr(capture_rows, "CAPTURE_METHODS", ("torch.fx", "torch.export"))
    assert inspect_delivery(folder, None, captures=True, as_json=True) == 0
    table = json.loads(capsys.readouterr().out)["captures"]
    assert [row["captured"] for row in table["rows"]] == [True, True]
    assert "compile it ahead of time" in table["recommendation"]
    monkeypatch.setitem(steps._BY_JOB, CaptureJob, replace(steps.CAPTURE, limit_s=0.01))
    assert inspect_delivery(folder, None, captures=True, as_json=False) == 0
    assert "torch.fx: crashed: no result within" in capsys.readouterr().out


def test_a_size_that_eager_fails_at_too_counts_for_and_against_nothing() -> None:
    class AtMostSix(Plain):
        shift = torch.ones(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.shift[: x.shape[0]]

    got = row("torch.jit.trace", AtMostSix())
    assert got.is_right
    assert got.tried == 5


def test_a_model_that_fails_on_its_example_is_reported_as_that() -> None:
    class Baked(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).view(3, 4)

    got = row("torch.export", Baked())
    assert not got.captured
    assert "eager fails on the example" in got.reason
