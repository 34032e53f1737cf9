"""`handoff deliver`: the name first, the contract as a table, and questions on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.signature import DECLARED
from handoff.infra.commands import deliver as deliver_command
from handoff.infra.commands.deliver import deliver_model
from handoff.infra.engine.child import ProcessPlan, StepProcess
from tests.infra.commands.test_cli import assert_is_a_sentence
from tests.limits import LIMIT_S

FACTORY = """
import os
import sys

import torch
from torch import nn


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user_embedding = nn.Embedding(50000, 4)
        self.head = nn.Linear(8, 1)

    def forward(self, user, counts, dense):
        known = torch.cat([self.user_embedding(user), dense + counts.float()], 1)
        return self.head(known)


def build():
    user, counts = torch.tensor([5, 21, 800]), torch.tensor([[3, 4, 9, 1]] * 3)
    return TwoTower(), (user, counts, torch.randn(3, 4))


def named():
    return *build(), {"name": "ranker", "ranges": {"counts": (0, 50), "dense": (0, 1)}}


def trained():
    print("\\x1b[32m91 of 100\\x1b[0m are right", end="\\x1b[2J")
    for epoch in range(3):
        print(f"\\repoch {epoch}", end="", file=sys.stderr)
    os.system("echo; echo told by another program")
    return build()


def fails():
    print("begun")
    raise ValueError("no weights")
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "handoff", "deliver", *arguments]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training side's folder, in which each test delivers to a folder of its own."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "towers.py").write_text(FACTORY)
    return folder


@pytest.fixture(scope="module")
def process(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepProcess]:
    """Start the process that runs the training side's own code, where that lies."""
    plan, log = ProcessPlan("deliver", sees="whole"), tmp_path_factory.mktemp("logs")
    with chdir(training):
        started = StepProcess(plan, log / "deliver.log")
    yield started
    started.close()


@pytest.fixture
def lent(training: Path, process: StepProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command, called here, use that process and not end it: one takes seconds to start."""
    monkeypatch.chdir(training)
    monkeypatch.setattr(deliver_command, "_open_process", lambda: nullcontext(process))


def deliver(training: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=training, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)  # fmt: skip


@pytest.mark.usefixtures("lent")
def test_the_name_comes_first_and_the_contract_says_where_each_range_comes_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deliver_model("towers:build", Path("first"), "", ask=False, as_json=False)
    text = capsys.readouterr().out
    first, *lines = text.splitlines()
    assert first == "two-tower: delivering towers:build (the name comes from its class TwoTower)"
    assert read_contract(Path("first")).model.name == "two-tower"
    rows = {line.split()[0]: line for line in reversed(lines) if line.strip()}
    assert "0 to 49999" in rows["user"]
    assert "table user_embedding of 50000 rows" in rows["user"]
    assert "batch (1 to 1024) x 4" in rows["counts"]
    assert "example: computed with as a number" in rows["counts"]
    assert rows["batch:"].strip() == "batch: 1 to 1024, by default"
    assert "verification will draw dense from a standard normal distribution" in text
    assert "Declare what is served: ranges={'counts': (LOW, HIGH)}" in text


@pytest.mark.usefixtures("lent")
def test_what_was_declared_is_said_to_be_and_nothing_is_left_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deliver_model("towers:named", Path("declared"), "", ask=False, as_json=False)
    text = capsys.readouterr().out
    assert text.startswith("ranker: delivering towers:named (the name comes from its factory's")
    assert "normal distribution" not in text
    assert "(LOW, HIGH)" not in text
    given = {spec.name: spec for spec in read_contract(Path("declared")).inputs}
    assert given["counts"].origin == given["dense"].origin == DECLARED


def test_a_folder_that_is_taken_is_told_before_the_model_is_made(training: Path) -> None:
    (training / "taken").mkdir()
    (training / "taken" / "mine").touch()
    result = deliver(training, "towers:build", "--to", "taken")
    assert_is_a_sentence(result, 64, "a new or an empty folder")


def test_a_program_gets_one_object_and_what_a_factory_prints_is_shown_beside_it(
    training: Path,
) -> None:
    result = deliver(training, "towers:trained", "--to", "trained", "--name", "mine", "--json")
    answer = json.loads(result.stdout)
    assert answer["contract"]["model"]["name"] == "mine"
    assert any("counts takes 1 to 9" in note for note in answer["notes"])
    lines = result.stderr.splitlines()
    # Colours are left out, as is what a progress bar wrote over.
    assert "91 of 100 are right" in result.stderr
    assert "\x1b" not in result.stderr
    assert "epoch 2" in result.stderr
    assert "epoch 1" not in result.stderr
    assert "told by another program" in lines
    quiet = deliver(training, "towers:trained", "--to", "quiet", "--quiet")
    assert (quiet.stdout.strip(), quiet.stderr) == (str(training / "quiet"), "")


def test_what_a_factory_printed_before_it_failed_comes_before_the_refusal(training: Path) -> None:
    first, refusal = deliver(training, "towers:fails", "--to", "none").stderr.splitlines()
    assert first == "begun"
    assert "ValueError: no weights" in refusal


def test_on_a_terminal_the_name_and_what_nothing_tells_are_asked(training: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command("towers:build", "--to", "asked"), cwd=training,
        stdin=follower, stdout=subprocess.PIPE, stderr=follower,
    )  # fmt: skip
    # The name, and the counts with an answer that can't be read first.
    os.write(leader, b"\nmany\n0:100\n")
    printed, _ = process.communicate(timeout=LIMIT_S)
    asked = os.read(leader, 1 << 16).decode()
    os.close(leader)
    os.close(follower)
    assert process.returncode == 0, asked
    assert "Name in the registry [two-tower]" in asked
    assert "counts: which numbers will be served? The example has 1 to 9" in asked
    assert "expected LOW:HIGH" in asked
    assert "user" not in asked, "the table says it"
    assert b"declared" in printed
    counts = read_contract(training / "asked").inputs[1]
    assert (counts.low, counts.high, counts.origin) == (0, 100, DECLARED)
