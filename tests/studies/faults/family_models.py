"""Small models of the kinds that are released, each with what makes its numbers delicate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class DeepNarrow(nn.Module):
    """Rounding adds up over 16 layers of 6 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(6, 6) for _ in range(16)])

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class RegressionHead(nn.Module):
    """One number for each row: `[N, 8]` to `[N]`, so that there is one element at batch 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.second = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.first(x))).squeeze(-1)


class GroupNormed(nn.Module):
    """Series `[N, 4, 21]`, normalised in groups of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 8, 5, padding=2)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv1d(8, 3, 3)

    def forward(self, x: Tensor) -> Any:
        return self.second(functional.silu(self.norm(self.first(x))))


class Depthwise(nn.Module):
    """A mobile network's block over `[N, 6, 9, 9]`, with its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.BatchNorm2d(6)
        self.gate = nn.Linear(6, 6)
        self.point = nn.Conv2d(6, 10, 1)

    def forward(self, x: Tensor) -> Any:
        h = functional.hardswish(self.norm(self.depth(x)))
        gate = functional.hardsigmoid(self.gate(h.mean((2, 3))))
        return self.point(h * gate.unsqueeze(-1).unsqueeze(-1)).mean((2, 3))


class Gated(nn.Module):
    """A GRU over `[N, 7, 5]`."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 10, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.gru(x)[0].mean(1))


class ManyHeads(nn.Module):
    """Attention in four heads over `[N, 9, 16]`, by torch's own operator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Any:
        parts = self.project(self.norm(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return x + self.out(h.transpose(1, 2).flatten(2))


class Probabilities(nn.Module):
    """Probabilities, their logarithms and their entropy, of 37 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(12, 37)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = self.scores(x) * 4.0
        likely = torch.softmax(scores, -1)
        return likely, torch.log_softmax(scores, -1), -(likely * torch.log(likely + 1e-9)).sum(-1)


class Transcendental(nn.Module):
    """Exponentials and logarithms, whose approximations differ between libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(13))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x * self.weight
        return (
            functional.softplus(h) * torch.erf(x),
            torch.expm1(h * 0.1) + torch.log1p(x * x),
            torch.rsqrt(x * x + 1e-3) * torch.sin(h),
            torch.pow(torch.abs(h) + 0.1, 1.7),
        )


class NearZero(nn.Module):
    """What is left when large numbers are taken from one another, and small ones on their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.layer(x)
        centred = h - h.mean(-1, keepdim=True)
        return centred.sum(-1), torch.tanh(h * 1e-6), torch.softmax(h, -1).sum(-1) - 1.0


class RootMeanSquare(nn.Module):
    """A language model's block over `[N, 5, 16]`: normalised by its RMS, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16) + 0.5)
        self.gate = nn.Linear(16, 40, bias=False)
        self.up = nn.Linear(16, 40, bias=False)
        self.down = nn.Linear(40, 16, bias=False)

    def forward(self, x: Tensor) -> Any:
        h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Decisions(nn.Module):
    """Whole numbers and booleans that are decided by floating-point ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 24)
        self.scores = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.first(x)
        # What is fused here is rounded fewer times than in eager, which moves what nearly ties.
        scores = self.scores(functional.silu(h) * torch.tanh(h) + h * 0.3)
        return scores.argmax(-1), scores > 0.0, torch.sigmoid(scores).amax(-1)


class Recommender(nn.Module):
    """Ids `[N, 4]` of 200 items: their products and a network, to one probability."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(200, 8)
        self.first = nn.Linear(32, 16)
        self.second = nn.Linear(16, 1)

    def forward(self, ids: Tensor) -> Any:
        h = self.items(ids)
        pairs = (h.sum(1) * h.sum(1) - (h * h).sum(1)).sum(-1, keepdim=True) * 0.5
        return torch.sigmoid(pairs * 0.1 + self.second(torch.relu(self.first(h.flatten(1)))))


class Ordered(nn.Module):
    """Running sums and sorted values of `[N, 30]`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(30))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x * self.weight
        return h.cumsum(-1), h.sort(-1)[0], h.topk(5, -1)[0]


class Enlarging(nn.Module):
    """Images `[N, 2, 7, 7]` made larger by a transposed convolution and by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 4, 2, stride=2)
        self.last = nn.Conv2d(4, 1, 3)

    def forward(self, x: Tensor) -> Any:
        h = functional.leaky_relu(self.up(x))
        return self.last(functional.interpolate(h, scale_factor=1.5, mode="bilinear"))


class WideRange(nn.Module):
    """Outputs from 1e-6 to 1e6, and their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = torch.exp(x * 2.0 + self.weight)
        return h, h.sum(-1), torch.log(h.sum(-1)), h.prod(-1)


class SignedSums(nn.Module):
    """Sums of 1003 numbers that nearly cancel: each row's rounding is large beside its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1003))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = x * self.weight
        return h.sum(-1), h.mean(-1), torch.var(h, -1)
