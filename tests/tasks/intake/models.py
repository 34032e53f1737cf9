"""Toy models, and deliveries of them as a careful training team would make them."""

from __future__ import annotations

import math
import warnings
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from handoff.artifacts.delivery.contract import (
    CONTRACT_FILE,
    DeliveryContract,
    ModelSection,
    format_contract,
)
from handoff.artifacts.delivery.signature import Dimension, TensorSpec

Tensor = torch.Tensor


class Perceptron(nn.Module):
    """Layers that to_folder writes as reprs, and a buffer and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(16, 4, bias=False)
        self.register_buffer("offset", torch.randn(4))
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Any:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.second(hidden) * self.scale + self.offset


class Block(nn.Module):
    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 2 * channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * channels, 2 * channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.down = nn.Sequential(
            nn.Conv2d(channels, 2 * channels, 1, stride, bias=False), nn.BatchNorm2d(2 * channels)
        )

    def forward(self, x: Tensor) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


class Residual(nn.Module):
    """Nested blocks with paths such as layers.0.down.1."""

    def __init__(self, width: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layers = nn.Sequential(*(Block(width * 2**i, 2) for i in range(blocks)))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 2**blocks, 5)

    def forward(self, x: Tensor) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(torch.flatten(self.pool(self.layers(x)), 1))


class Attention(nn.Module):
    """Leaves with children and functions of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation=F.gelu)
        self.attend = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        x = self.encoder(self.embed(ids))
        y, weights = self.attend(x, x, x)
        return {"hidden": self.norm(x + y), "weights": [weights, ids.size(1)]}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.bag = nn.EmbeddingBag(10, 8, mode="mean")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, (h, _) = self.lstm(x)
        z, _ = self.gru(y)
        return z, h, self.bag(torch.zeros(2, 3, dtype=torch.int64))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.mix(self.embed(ids)))


class Unquoted(nn.Module):
    """Convolutions whose repr has words without quotes."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Conv1d(8, 8, 3, padding="same", padding_mode="circular")
        self.valid = nn.Conv1d(8, 8, 1, padding="valid", groups=2, dilation=2)

    def forward(self, x: Tensor) -> Any:
        return self.valid(self.same(x.unsqueeze(-1).expand(-1, -1, 9)))


class Grammar(nn.Module):
    """As many kinds of line as fit into one forward."""

    def forward(self, x: Tensor, input: Tensor, alpha: float = 0.5, flag: bool = True) -> Any:  # noqa: A002
        a = abs(x) + x.shape[0] - math.sqrt(2) * x.size(-1)
        b = (-a) ** 2 // 3 % 7 / 2.0
        c = ~(b > 1) & (b <= 3) | (a == 0) ^ (a != 1)
        d = b[:, None, ..., 1:3] @ torch.ones(1, 2, 2, dtype=torch.float32)
        e = torch.where(c, a, float("-inf")).clamp(min=-1e30).to(torch.float64).to(x.dtype)
        f = F.gelu(e) + F.scaled_dot_product_attention(x[None], x[None], x[None]).sum(0)
        g = torch.einsum("ij,kj->ik", f, input) + torch.functional.norm(x)
        h = torch.cat([f, x.mT.mT], dim=-1).max(dim=1)
        i = torch.zeros_like(x, memory_format=torch.contiguous_format, device=torch.device("cpu"))
        i = i * alpha
        j = torch.fft.fft(x).real + torch.special.erf(x) + torch.linalg.norm(x) + torch.max(x)
        k = torch.ops.aten.add.Tensor(x, 1) + torch.ops.aten.relu(x)
        m = x.view(torch.uint8).view(x.dtype).split([4, 4], 1)[0] * (1 + 2j)
        return (h.values, {"d": d, "g": [g, h.indices]}, i, j, k, m, None, "text", 3, slice(0, 2))


def spec(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name, dtype, shape)


CASES: dict[str, tuple[type[nn.Module], tuple[TensorSpec, ...]]] = {
    "perceptron": (Perceptron, (spec("x", "float32", "N", 8),)),
    "residual": (Residual, (spec("x", "float32", "N", 3, 16, 16),)),
    "attention": (Attention, (spec("ids", "int64", "N", 6),)),
    "recurrent": (Recurrent, (spec("x", "float32", "N", 5, 8),)),
    "tied": (Tied, (spec("ids", "int64", "N", 6),)),
    "unquoted": (Unquoted, (spec("x", "float32", "N", 8),)),
    "grammar": (Grammar, (spec("x", "float32", "N", 8), spec("input", "float32", "N", 8))),
}


def make_model(name: str) -> nn.Module:
    """Return a model in evaluation mode whose running statistics are not the initial ones."""
    torch.manual_seed(0)
    model = CASES[name][0]()
    with torch.no_grad():
        model(*draw(name))
    return model.eval()


def draw(name: str, batch: int = 3) -> tuple[Tensor, ...]:
    drawn: list[Tensor] = []
    for tensor in CASES[name][1]:
        sizes = tensor.sizes({"N": batch})
        is_index = tensor.dtype == "int64"
        drawn.append(torch.randint(0, 10, sizes) if is_index else torch.randn(sizes))
    return tuple(drawn)


def deliver(model: nn.Module, folder: Path, inputs: tuple[TensorSpec, ...]) -> torch.fx.GraphModule:
    """Write the delivery of a model into `folder` and return the traced module."""
    traced = model if isinstance(model, torch.fx.GraphModule) else torch.fx.symbolic_trace(model)
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced.to_folder(folder.name, "FxModule")
    sizes = {axis for tensor in inputs for axis in tensor.shape if isinstance(axis, str)}
    contract = DeliveryContract(
        ModelSection("toy", torch=torch.__version__),
        inputs,
        dimensions={size: Dimension(1, 64) for size in sizes},
    )
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")
    return traced


def deliver_case(name: str, folder: Path) -> torch.fx.GraphModule:
    return deliver(make_model(name), folder, CASES[name][1])
