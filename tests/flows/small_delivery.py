"""A small network's factories, and what a release of it printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def released(home: Path) -> dict[str, Any]:
    """Return what the release printed."""
    plain: dict[str, Any] = json.loads((home / "released.json").read_text())
    return plain
