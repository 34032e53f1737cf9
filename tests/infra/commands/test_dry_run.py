"""`handoff release --dry-run` before anything was released; tests/flows/test_release.py goes on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from handoff.infra.commands import dry_run
from handoff.infra.terminal.step_times import StepTimes
from handoff.tasks.deliver.step import deliver
from tests.infra.commands.here import StepsHere, output_of, ran, refusal
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.tasks.deliveries import write_delivery
from tests.toy_models import FixedBatch, SmallNet, make


@pytest.fixture
def steps_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command's steps run in this process, and its home be an empty one."""
    for name in os.environ:
        if name.startswith(("HANDOFF_", "AWS_", "MLFLOW")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "here"))
    monkeypatch.setattr(dry_run, "StepProcess", StepsHere)


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "delivery"
    deliver(make(SmallNet).eval(), (torch.randn(4, 8),), folder, name="small")
    return folder


def test_a_first_release_would_be_built_and_nothing_is_written(
    delivery: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('targets = ["cpu-avx2", "cuda-sm90", "cuda-sm80+sm90"]\n')
    arguments = ("release", str(delivery), "--dry-run", "--recipe", str(recipe), "--json")
    result = handoff(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    plain = json.loads(result.stdout)
    assert (plain["model"], plain["would"], plain["version"]) == ("small", "build", None)
    assert "nothing was released as small before" in plain["why"]
    slugs = ["cpu-avx2", "cuda-sm90", "cuda-sm80+sm90"]
    assert [one["slug"] for one in plain["targets"]] == slugs
    assert all(one["cached"] == "" and one["expected_s"] is None for one in plain["targets"])
    assert (plain["alias"], plain["store"]) == ("candidate", str(home / "store"))
    assert plain["steps"] == {}
    # Only what the tests themselves put there, for releases.
    left = {str(path.relative_to(home)) for path in home.rglob("*")}
    assert left == {"builds", "builds/programs", "builds/compiler"}


def test_what_a_target_for_several_gpus_needs_is_told_before_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = StepTimes({})
    row = dry_run._target_row(times, "cuda-sm80+sm90", "")
    assert row[1] == "compiled, not verified: no such GPU here"
    monkeypatch.setattr(dry_run, "find_fatbinary", lambda: None)
    for slug in ("cuda-sm80+sm90", "cuda-sm86"):
        state = dry_run._target_row(times, slug, "")[1]
        assert state == "can't be built: no fatbinary here ('handoff doctor' tells how to get it)"
    assert dry_run._target_row(times, "cuda-sm90", "")[1].startswith("compiled, not verified")


class Levels(torch.nn.Module):
    """Rounds down to tenths, which Inductor's C++ computes otherwise than torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.floor_divide(x, 0.1)


@pytest.mark.usefixtures("steps_here")
def test_an_operator_that_the_compiler_is_known_to_get_wrong_is_told_before_a_release(
    tmp_path: Path,
) -> None:
    folder = write_delivery(tmp_path / "levels", Levels().eval(), {"x": torch.rand(4, 8)})
    shown = output_of("release", folder, "--dry-run")
    assert "aten.floor_divide" in shown
    assert "known-wrong-operator" in shown
    assert "handoff conformance --show floor_divide" in " ".join(shown.split())
    plain = json.loads(output_of("release", folder, "--dry-run", "--json"))
    assert "known-wrong-operator" in [finding["code"] for finding in plain["findings"]]


@pytest.mark.usefixtures("steps_here")
def test_with_quiet_one_line_says_it(delivery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["release", str(delivery), "--dry-run", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["handoff", *asked])
    result = ran(*asked)
    assert result.exit_code == 0
    assert result.stdout == "small: would be built: nothing was released as small before\n"
    assert result.stderr == ""


@pytest.mark.usefixtures("steps_here")
def test_an_unsound_delivery_is_refused_as_a_release_would(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(4, 8)}
    folder = write_delivery(tmp_path / "fixed", make(FixedBatch).eval(), inputs)
    refused = handoff("release", str(folder), "--dry-run", home=tmp_path / "home")
    assert_is_a_sentence(refused, 2, "size-baked-in", "more:  handoff explain size-baked-in")
    plain = ran("release", folder, "--dry-run", "--json")
    assert plain.exit_code == 2
    assert json.loads(plain.stdout)["error"]["class"] == "DeliveryUnsound"


@pytest.mark.usefixtures("steps_here")
def test_an_alias_that_a_release_may_not_move_is_told_before(delivery: Path) -> None:
    assert "production" in refusal("release", delivery, "--dry-run", "--alias", "production")
