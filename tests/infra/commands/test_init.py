"""`handoff init`: a bare folder becomes a delivery, or the flag that is missing is named."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import torch
import torch.fx
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import CONTRACT_FILE, read_contract
from handoff.artifacts.delivery.signature import DTYPES, TensorSpec
from handoff.artifacts.errors import UsageProblem
from handoff.infra.commands import init
from handoff.infra.commands.input_flags import (
    format_spec,
    parse_dimension,
    parse_input,
    parse_range,
)
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as inspect
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.registry.assemble import refuse_unsound
from tests.infra.commands.here import StepsHere, output_of, refusal
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.limits import LIMIT_S


@pytest.fixture
def steps_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command's steps run in this process."""
    monkeypatch.setattr(init, "StepProcess", StepsHere)


class Digits(nn.Sequential):
    """A convolution network whose last layer fits images of one size alone."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(6 * 6 * 6, 10)
        )


class Clicks(nn.Module):
    """Ids through a table and a recurrent layer, beside features that no layer alone takes."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(2000, 16)
        self.reader = nn.LSTM(16, 8, batch_first=True)
        self.out = nn.Linear(8 + 4, 2)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        read, _ = self.reader(self.items(ids))
        scores: Tensor = self.out(torch.cat([read[:, -1], dense], 1))
        return scores


class Opaque(nn.Module):
    """Takes parts of an input of three axes, so that no layer tells its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(300, 8)

    def forward(self, events: Tensor) -> Tensor:
        rows: Tensor = self.items(events[:, 2, 11]) + self.items(events[:, 0, 3])
        return rows


def bare(folder: Path, module: nn.Module) -> Path:
    """Write what to_folder alone writes."""
    with chdir(folder):
        torch.fx.symbolic_trace(module.eval()).to_folder("bare", "Model")
    return folder / "bare"


@pytest.mark.usefixtures("steps_here")
def test_the_inputs_of_a_convolution_network_are_inferred(tmp_path: Path) -> None:
    folder = bare(tmp_path, Digits())
    shown = output_of("init", folder, "--name", "digits")
    assert "handoff inspect" in shown
    assert "golden" in shown
    contract = read_contract(folder)
    assert contract.model.name == "digits"
    assert contract.inputs == (TensorSpec("input", "float32", ("batch", 1, 28, 28)),)
    take_in(IntakeJob(folder, tmp_path / "staging"))
    refuse_unsound(inspect(TraceabilityJob(tmp_path / "staging")))


def test_tables_give_the_values_and_running_gives_the_features(tmp_path: Path) -> None:
    folder = bare(tmp_path, Clicks())
    result = handoff("init", str(folder), "--json", home=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["file"] == str(folder / CONTRACT_FILE)
    ids, dense = read_contract(folder).inputs
    assert ids == TensorSpec("ids", "int64", ("batch", "length"), 0.0, 1999.0)
    assert dense == TensorSpec("dense", "float32", ("batch", 4))


class Placed(nn.Module):
    """Tokens and a learned place for each of six."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 4)
        self.places = nn.Parameter(torch.randn(6, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.tokens(tokens)
        return found + self.places[: tokens.shape[1]]


@pytest.mark.usefixtures("steps_here")
def test_a_length_is_as_long_as_the_model_runs_and_never_one_that_was_tried(
    tmp_path: Path,
) -> None:
    folder = bare(tmp_path, Placed())
    output_of("init", folder, "--yes")
    contract = read_contract(folder)
    assert contract.inputs == (TensorSpec("tokens", "int64", ("batch", "length"), 0.0, 99.0),)
    assert (contract.dimensions["length"].min, contract.dimensions["length"].max) == (1, 6)
    assert contract.dimensions["length"].origin == "seen to run"
    assert "a table of 100 rows" in contract.inputs[0].origin


class Weighs(nn.Module):
    """Multiplies its features with four weights: one feature would be broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights


@pytest.mark.usefixtures("steps_here")
def test_features_that_are_broadcast_are_not_taken_for_one(tmp_path: Path) -> None:
    folder = bare(tmp_path, Weighs())
    output_of("init", folder, "--yes")
    assert read_contract(folder).inputs[0].shape == ("batch", 4)


class Anywhere(nn.Sequential):
    """Images of any size."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1))


@pytest.mark.usefixtures("steps_here")
def test_sides_that_could_be_others_are_said_to_be_a_guess(tmp_path: Path) -> None:
    folder = bare(tmp_path, Anywhere())
    assert "these are a guess: --input says which" in output_of("init", folder, "--yes")
    other = tmp_path / "other"
    other.mkdir()
    assert "a guess" not in output_of("init", bare(other, Digits()), "--yes")


def test_what_cannot_be_inferred_is_asked_for_by_its_flag_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    folder = bare(tmp_path, Opaque())
    before = sorted(folder.iterdir())
    result = handoff("init", str(folder), home=tmp_path)
    assert_is_a_sentence(result, 64, "events", "--input 'events:int64:", "table of 300 rows")
    assert sorted(folder.iterdir()) == before


@pytest.mark.usefixtures("steps_here")
def test_flags_are_believed_and_completed(tmp_path: Path) -> None:
    folder = bare(tmp_path, Opaque())
    shape = ("--input", "events:int64:batch,3,12", "--dimension", "batch=2:64")
    origin = ("--repository", "models", "--commit", "0123abc", "--author", "team")
    output_of("init", folder, *shape, *origin)
    contract = read_contract(folder)
    assert contract.inputs == (TensorSpec("events", "int64", ("batch", 3, 12), 0.0, 299.0),)
    assert (contract.dimensions["batch"].min, contract.dimensions["batch"].max) == (2, 64)
    assert (contract.source.commit, contract.source.author) == ("0123abc", "team")


@pytest.mark.usefixtures("steps_here")
def test_a_contract_that_the_model_does_not_run_with_is_not_written(tmp_path: Path) -> None:
    folder = bare(tmp_path, Digits())
    refused = refusal("init", folder, "--input", "input:float32:batch,3,28,28")
    for part in ("3 channels", "nothing was written", "--input"):
        assert part in refused
    assert not (folder / CONTRACT_FILE).exists()


@pytest.mark.usefixtures("steps_here")
def test_a_contract_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    folder = bare(tmp_path, Digits())
    (folder / CONTRACT_FILE).write_text("mine")
    assert "--force" in refusal("init", folder)
    assert (folder / CONTRACT_FILE).read_text() == "mine"
    output_of("init", folder, "--force")
    assert read_contract(folder).model.class_name == "Model"


@pytest.mark.usefixtures("steps_here")
@pytest.mark.parametrize(
    "flags",
    [("--input", "x:float32:3"), ("--range", "x=0:1"), ("--dimension", "bach=1:2")],
)
def test_a_flag_for_something_that_is_not_there_is_reported(
    flags: tuple[str, str], tmp_path: Path
) -> None:
    folder = bare(tmp_path, Digits())
    refused = refusal("init", folder, *flags)
    assert flags[0] in refused
    assert flags[1].replace("=", ":").partition(":")[0] in refused


def test_on_a_terminal_the_proposals_are_the_answers_to_take(tmp_path: Path) -> None:
    folder = bare(tmp_path, Clicks())
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "handoff", "init", str(folder)],
        stdin=follower, stdout=subprocess.PIPE, stderr=follower,
        env={**os.environ, "HANDOFF_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    # The name, the ids with a wrong answer first, their values, the features, batch, length.
    os.write(leader, b"clicks\nint64\n\n0:99\n\n1:32\n\n")
    printed, _ = process.communicate(timeout=LIMIT_S)
    asked = os.read(leader, 1 << 16).decode()
    os.close(leader)
    os.close(follower)
    assert process.returncode == 0, asked
    assert "expected DTYPE:AXES" in asked
    assert b"wrote" in printed
    contract = read_contract(folder)
    assert contract.model.name == "clicks"
    assert contract.inputs[0].high == 99.0
    assert contract.dimensions["batch"].max == 32


_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
_AXES = st.lists(st.integers(0, 10**6) | _NAMES, max_size=5).map(tuple)


@given(_NAMES, st.sampled_from(DTYPES), _AXES)
def test_a_spec_that_is_written_is_read_back(
    name: str, dtype: str, shape: tuple[int | str, ...]
) -> None:
    spec = TensorSpec(name, dtype, shape)
    assert parse_input(f"{name}:{format_spec(spec)}") == spec


@given(st.text(max_size=60))
def test_any_text_as_a_flag_is_read_or_refused(text: str) -> None:
    for parse in (parse_input, parse_dimension, parse_range):
        with contextlib.suppress(UsageProblem):
            parse(text)
