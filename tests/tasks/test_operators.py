"""Operator libraries: a graph may call what the recipe names, and nothing else of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from artifacts.errors import DeliveryUnreadable, UsageProblem
from artifacts.recipe import read_recipe
from artifacts.steps import DeliverJob, DeliverResult, IntakeJob, IntakeResult, TraceabilityJob
from tasks.child import ProcessPlan, StepProcess
from tasks.operators import load_library

LIBRARY = "tests.tasks.scaling_operators"
FACTORY = "tests.tasks.test_operators:build"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.handoff_test.scale(self.layer(x), 3.0)  # type: ignore[no-any-return]


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model and its example, as a training team's factory does."""
    import tests.tasks.scaling_operators  # noqa: F401 - it registers the operator

    return Scaled().eval(), (torch.randn(6, 4),)


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("operators") / "scaled"
    process = StepProcess(ProcessPlan("deliver", sees="whole"), folder.parent / "deliver.log")
    try:
        result = process.run(DeliverJob(FACTORY, Path.cwd(), folder, "scaled"), limit_s=120)
    finally:
        process.close()
    assert isinstance(result, DeliverResult)
    assert "the recipe has to name their library" in result.notes[-1]
    assert "handoff_test" in result.notes[-1]
    return folder


def inspect(delivery: Path, tmp_path: Path, *operators: str) -> object:
    process = StepProcess(ProcessPlan("inspect", operators=operators), tmp_path / "log")
    try:
        taken = process.run(IntakeJob(delivery, tmp_path / "staging"), limit_s=120)
        assert isinstance(taken, IntakeResult)
        return process.run(TraceabilityJob(tmp_path / "staging"), limit_s=120)
    finally:
        process.close()


def test_an_operator_of_a_library_that_the_recipe_names_is_run(
    delivery: Path, tmp_path: Path
) -> None:
    assert inspect(delivery, tmp_path, LIBRARY).verdict == "sound"  # type: ignore[attr-defined]


def test_without_its_library_an_operator_is_refused_by_name_with_the_way_out(
    delivery: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnreadable, match=r"torch\.ops\.handoff_test\.scale") as caught:
        inspect(delivery, tmp_path)
    assert "register its library in the recipe" in caught.value.remedy


@pytest.mark.parametrize(
    ("library", "match"),
    [
        ("no_such_library", "can't be imported.*No module named"),
        ("json", "registers no operators of its own"),
    ],
)
def test_a_wrong_library_is_refused(library: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=match):
        load_library(library)
    with pytest.raises(UsageProblem, match=match):
        inspect(tmp_path, tmp_path, library)


def test_the_recipe_names_libraries_by_module(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f'operators = ["{LIBRARY}"]\n')
    assert read_recipe(tmp_path / "recipe.toml").operators == (LIBRARY,)
    (tmp_path / "recipe.toml").write_text('operators = ["rm -rf; x"]\n')
    with pytest.raises(UsageProblem, match="expected a module's name under operators"):
        read_recipe(tmp_path / "recipe.toml")
