"""A small network's factories, and what a release of it printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.infra.commands.test_cli import handoff

FACTORY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


class Noisy(Net):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)[:, :4]


def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(8, 16),)


class Wavy(Net):
    def forward(self, x):
        return torch.tanh(super().forward(x))


def wavy():
    torch.manual_seed(0)
    return Wavy().eval(), (torch.randn(8, 16),)


def fresh():
    net, inputs = build()
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    return net, inputs


def large():
    torch.manual_seed(0)
    table = nn.EmbeddingBag(75_000, 1000, mode="sum")
    return table.eval(), (torch.randint(75_000, (8, 3)),)
"""


def deliver_and_release(
    factory: str, training: Path, home: Path
) -> tuple[dict[str, Any], list[str]]:
    """Deliver and release what a factory makes, under its own name.

    Returns the one target's record, and the names of the steps in the order of their ends.
    """
    name = factory.replace(":", "-")
    made = handoff("deliver", factory, "--to", name, "--name", name, home=home, cwd=training)
    assert made.returncode == 0, made.stderr
    result = handoff("release", str(training / name), "--json", home=home)
    assert result.returncode == 0, result.stderr
    (target,) = json.loads(result.stdout)["targets"]
    return target, [line.partition(":")[0] for line in result.stderr.splitlines()]


def released(home: Path) -> dict[str, Any]:
    """Return what the release printed."""
    plain: dict[str, Any] = json.loads((home / "released.json").read_text())
    return plain
