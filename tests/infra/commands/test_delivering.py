"""`handoff deliver`: the name first, the contract as a table, and questions on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.signature import DECLARED
from tests.infra.commands.test_cli import assert_is_a_sentence

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


@pytest.fixture
def training(tmp_path: Path) -> Path:
    (tmp_path / "towers.py").write_text(FACTORY)
    return tmp_path


def deliver(training: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=training, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)  # fmt: skip


def test_the_name_comes_first_and_the_contract_says_where_each_range_comes_from(
    training: Path,
) -> None:
    result = deliver(training, "towers:build", "--to", "out")
    assert result.returncode == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert first == "two-tower: delivering towers:build (the name comes from its class TwoTower)"
    rows = {line.split()[0]: line for line in reversed(lines) if line.strip()}
    assert "0 to 49999" in rows["user"]
    assert "table user_embedding of 50000 rows" in rows["user"]
    assert "batch (1 to 1024) x 4" in rows["counts"]
    assert "example: computed with as a number" in rows["counts"]
    assert rows["batch:"].strip() == "batch: 1 to 1024, by default"
    assert "verification will draw dense from a standard normal distribution" in result.stdout
    assert "Declare what is served: ranges={'counts': (LOW, HIGH)}" in result.stdout


def test_what_was_declared_is_said_to_be_and_nothing_is_left_open(training: Path) -> None:
    result = deliver(training, "towers:named", "--to", "out")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "ranker: delivering towers:named (the name comes from its factory's"
    )
    assert "normal distribution" not in result.stdout
    assert "(LOW, HIGH)" not in result.stdout
    given = {spec.name: spec for spec in read_contract(training / "out").inputs}
    assert given["counts"].origin == given["dense"].origin == DECLARED


def test_a_program_gets_one_object(training: Path) -> None:
    result = deliver(training, "towers:build", "--to", "out", "--name", "mine", "--json")
    told = json.loads(result.stdout)
    assert told["contract"]["model"]["name"] == "mine"
    assert any("counts takes 1 to 9" in note for note in told["notes"])


def test_a_folder_that_is_taken_is_told_before_the_model_is_made(training: Path) -> None:
    (training / "out").mkdir()
    (training / "out" / "mine").touch()
    result = deliver(training, "towers:build", "--to", "out")
    assert_is_a_sentence(result, 64, "a new or an empty folder")


def test_what_a_factory_prints_is_shown_beside_what_the_command_gives(training: Path) -> None:
    result = deliver(training, "towers:trained", "--to", "out", "--json")
    assert json.loads(result.stdout)["contract"]["model"]["name"] == "two-tower"
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
    first, refusal = deliver(training, "towers:fails", "--to", "out").stderr.splitlines()
    assert first == "begun"
    assert "ValueError: no weights" in refusal


def test_on_a_terminal_the_name_and_what_nothing_tells_are_asked(training: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command("towers:build", "--to", "out"), cwd=training,
        stdin=follower, stdout=subprocess.PIPE, stderr=follower,
    )  # fmt: skip
    # The name, and the counts with an answer that can't be read first.
    os.write(leader, b"\nmany\n0:100\n")
    printed, _ = process.communicate(timeout=300)
    asked = os.read(leader, 1 << 16).decode()
    os.close(leader)
    os.close(follower)
    assert process.returncode == 0, asked
    assert "Name in the registry [two-tower]" in asked
    assert "counts: which numbers will be served? The example has 1 to 9" in asked
    assert "expected LOW:HIGH" in asked
    assert "user" not in asked, "the table says it"
    assert b"declared" in printed
    counts = read_contract(training / "out").inputs[1]
    assert (counts.low, counts.high, counts.origin) == (0, 100, DECLARED)
