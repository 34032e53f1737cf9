"""A night from end to end, embedded: the better serves, the worse doesn't, the rest stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.flows.small_delivery import FACTORY
from tests.infra.commands.test_cli import handoff
from tests.limits import LIMIT_S
from tests.shared_tools import share_built

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.demo, pytest.mark.compile, pytest.mark.server, pytest.mark.long]

# Half precision, within a tolerance that lets it pass: what no one wants to be promoted to.
HALF = """
[[passes]]
name = "lower-precision"
parameters = { dtype = "bfloat16", operators = "linear" }
[tolerance.float32]
atol = 0.5
rtol = 0.5
rmse_factor = 1e6
"""
# Right again, and as fast as asked: on a processor that computes bfloat16 itself it is slower.
WHOLE = """
[tolerance.float32]
atol = 0.5
rtol = 0.5
rmse_factor = 1e6
[promotion]
slowdown = 10.0
"""
# A commit is what the training side calls one; git's form is not asked of it.
SERVE = """
import sys
from pathlib import Path
from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.recipe.reading import read_recipe
import handoff
from small import build

for name in sys.argv[1:]:
    handoff.deliver(*build(), name, name=name, lineage=Lineage(commit="v1.2 of May"))
    released = handoff.release(name, recipe=read_recipe(Path(f"{name}.toml")))
    assert handoff.promote(f"{name}@{released.version}") == 1
"""


def run(home: Path, *arguments: str, code: int = 0) -> str:
    """Run a command that has to end with `code`; return what it printed."""
    result = handoff(*arguments, home=home, cwd=home)
    assert result.returncode == code, result.stderr
    return result.stdout


def night(home: Path, code: int = 0) -> dict[str, dict[str, Any]]:
    """Return the rows of a night by their models."""
    plain = json.loads(run(home, "recompile", "--json", code=code))
    return {row["model"]: row for row in plain["rows"]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which four models are in production, and today's recipes are others for three."""
    folder = tmp_path_factory.mktemp("night")
    (folder / "small.py").write_text(FACTORY)
    recipes = folder / "recipes"
    recipes.mkdir()
    for name, before, today in (
        ("steady", "", None),
        ("better", HALF, WHOLE),
        ("worse", "", HALF),
        ("wrong", "", 'extensions = ["no_such_module@sha256:' + "0" * 64 + '"]\n'),
    ):
        (folder / f"{name}.toml").write_text(before)
        if today is not None:
            (recipes / f"{name}.toml").write_text(today)
    share_built(folder / "builds")
    # In one process, as a notebook would: several releases by one embedded server.
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, "steady", "better", "worse", "wrong"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "HANDOFF_HOME": str(folder), "PYTHONPATH": f"{ROOT}:{folder}"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, dict[str, Any]]:
    """The rows of the first night, of which one model can't be built."""
    return night(home, code=1)


def test_what_nothing_has_changed_about_is_left_alone(first: dict[str, dict[str, Any]]) -> None:
    row = first["steady"]
    assert (row["outcome"], row["old"], row["new"]) == ("unchanged", 1, None)
    assert row["why"] == "nothing has changed"


def test_what_is_better_serves_from_then_on(home: Path, first: dict[str, dict[str, Any]]) -> None:
    row = first["better"]
    assert (row["outcome"], row["old"], row["new"]) == ("replaced", 1, 2), row["why"]
    (compared,) = row["comparisons"]
    assert compared["verdict"] == "better"
    assert compared["old"]["basis"] == compared["new"]["basis"] == "measured"
    assert compared["old"]["rmse_ratio"] > 100 * compared["new"]["rmse_ratio"]
    served = json.loads(run(home, "show", "better@production", "--json"))
    assert served["version"] == 2
    assert served["lineage"]["commit"] == "v1.2 of May"
    history = run(home, "history", "better")
    assert "nightly: the recipe" in history
    assert "nightly recompile" in history


def test_what_is_worse_is_registered_and_does_not_serve(
    home: Path, first: dict[str, dict[str, Any]]
) -> None:
    row = first["worse"]
    assert (row["outcome"], row["old"], row["new"]) == ("kept", 1, 2), row["why"]
    assert "less accurate" in row["why"]
    assert json.loads(run(home, "show", "worse@production", "--json"))["version"] == 1
    assert json.loads(run(home, "show", "worse@nightly", "--json"))["version"] == 2


def test_a_model_that_can_not_be_built_stops_no_other(
    home: Path, first: dict[str, dict[str, Any]]
) -> None:
    row = first["wrong"]
    assert row["outcome"] == "failed"
    assert "no_such_module" in row["why"]
    assert json.loads(run(home, "show", "wrong@production", "--json"))["version"] == 1


def test_the_next_night_builds_only_what_went_wrong(
    home: Path, first: dict[str, dict[str, Any]]
) -> None:
    assert first
    (home / "recipes" / "wrong.toml").unlink()
    rows = night(home)
    assert [row for row in rows.values() if row["outcome"] != "unchanged"] == []
    assert "version 2, made by today's toolchain, is kept back" in rows["worse"]["why"]
    assert rows["worse"]["new"] == 2
    assert rows["better"]["old"] == 2


def test_a_night_is_a_run_in_mlflow_with_its_page(home: Path, first: dict[str, Any]) -> None:
    assert first
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("handoff nights")
    assert experiment is not None
    logged = client.search_runs([experiment.experiment_id], order_by=["start_time ASC"])[0]
    assert logged.info.status == "FAILED"
    assert logged.data.metrics["models.replaced"] == 1
    assert logged.data.metrics["models.kept"] == 1
    assert logged.data.metrics["models.unchanged"] == 1
    assert logged.data.metrics["models.failed"] == 1
    note = logged.data.tags["mlflow.note.content"]
    assert "| better &emsp; | replaced &emsp; |" in note
    assert "less accurate" in note
    assert "flow run `" in note
    names = {found.path for found in client.list_artifacts(logged.info.run_id)}
    assert {"night.html", "night.md", "night.json", "trends"} <= names
