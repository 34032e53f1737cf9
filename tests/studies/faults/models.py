"""Small models that faults are planted in: between them they have what a fault needs.

All of them take tensors that share a batch in axis 0, and are traced by `torch.fx` as they stand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Perceptron(nn.Module):
    """`[N, 8]` to `[N, 5]`; its batch norm lies between activations, so that no pass folds it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(32)
        self.middle = nn.Linear(32, 32)
        self.last = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Any:
        hidden = torch.sigmoid(self.norm(torch.relu(self.first(x))))
        return self.last(functional.gelu(self.middle(hidden)) + hidden * 0.5)


class Attention(nn.Module):
    """A transformer's block over `[N, 6, 16]` with a mask `[N, 6]` of the places that count."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(16)
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.second_norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        h = self.first_norm(x)
        query, key, value = self.query(h), self.key(h), self.value(h)
        scores = torch.matmul(query, key.transpose(1, 2)) * 0.25
        scores = scores.masked_fill(torch.logical_not(mask.unsqueeze(1)), -1e4)
        x = x + torch.matmul(torch.softmax(scores, -1), value)
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Arithmetic(nn.Module):
    """What compilers fuse: differences, quotients, bounds and choices over two `[N, 6, 6]`."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        difference = x - y * 0.5
        quotient = difference / (torch.exp(y) + 1.0)
        centred = quotient - quotient.mean(-1, keepdim=True)
        chosen = torch.where(x > 0.25, torch.clamp(centred, -0.5, 0.5), torch.tanh(y))
        joined = torch.cat([chosen[:, 1:5], torch.log(x)[:, :2]], 1)
        return joined, torch.var(x, -1), y.cumsum(1)


class Discrete(nn.Module):
    """Whole numbers from whole numbers `[N, 7]`: quotients, rounding, comparisons, places."""

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        shifted = ids - 5
        halves = torch.round(shifted * 0.5)
        return (
            torch.div(shifted, 3, rounding_mode="floor"),
            halves,
            ids > 4,
            (ids % 4).argmax(1),
            ids * 4_294_967_311,
        )


class Embedded(nn.Module):
    """Ids `[N, 7]` of 50 items, 0 for none, become scores `[N, 1]` between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(50, 12, padding_idx=0)
        self.score = nn.Linear(12, 1)

    def forward(self, ids: Tensor) -> Any:
        return torch.sigmoid(self.score(self.items(ids).sum(1)))


class Convolutional(nn.Module):
    """Images `[N, 3, 11, 11]` to `[N, 4]`, with a batch norm that is folded, and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.norm(self.first(x)))
        h = functional.avg_pool2d(h, 3, 2, 1) + self.second(h)
        h = functional.interpolate(h, scale_factor=2.0, mode="bilinear")
        return self.head(functional.max_pool2d(h, 2).mean((2, 3)))


class Recurrent(nn.Module):
    """Series `[N, 9, 4]` to `[N, 2]` by an LSTM's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 12, batch_first=True)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


class Reductions(nn.Module):
    """Rows `[N, 1003]`, which no vector width divides, to one number each, four times.

    The maximum is one of negative numbers, which zeros in the empty lanes of a vector would beat.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        negative = -torch.abs(x[:, :11])
        return (
            (x * x).sum(1),
            torch.exp(x * 0.1).mean(1),
            negative.amax(1),
            torch.logsumexp(x, 1),
        )


class WholeBatch(nn.Module):
    """`[N, 1003]` to one number, which threads add up together."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean((0, 1))


class Elementwise(nn.Module):
    """`[N, 11]` to two of the same shape, in one loop over all of the elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(11))
        self.shift = nn.Parameter(torch.randn(11))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = torch.relu(x * self.scale + self.shift)
        return functional.gelu(h) * 0.5, torch.where(x >= 0.5, x, x * 0.1)


class LargeTable(nn.Module):
    """Ids `[N, 7]` of 10 000 items, most of which no case of the plan takes."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(10_000, 4)

    def forward(self, ids: Tensor) -> Any:
        return self.items(ids).sum(1)
