"""Small models that several tests share, each of one kind that the training side hands over."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn


class SmallNet(nn.Module):
    """What everything works on: two layers and a batch norm, `[N, 8]` to `[N, 4]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.relu(self.norm(self.first(x))))


class TrainingNet(nn.Module):
    """Seed 000's model: a dropout, and a loss that is made inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()
        self.dropout = nn.Dropout(0.5)
        self.predict: Tensor | None = None

    def forward(self, x: Tensor, label: Tensor) -> Any:
        predict = self.dropout(self.inner(x))
        self.predict = predict
        return nn.CrossEntropyLoss()(predict, label.long())


class OwnLossNet(nn.Module):
    """A loss that is a child, called by keywords, beside a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()
        self.loss = nn.BCELoss()

    def forward(self, x: Tensor, label: Tensor) -> tuple[Any, ...]:
        scores = torch.sigmoid(self.inner(x))
        return self.loss(target=label, input=scores), scores.argmax(1)


class DropoutInForward(nn.Module):
    """A dropout made inside forward: never in evaluation mode, whatever the model's own mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()

    def forward(self, x: Tensor) -> Any:
        return nn.Softmax(dim=-1)(nn.Dropout(0.5)(self.inner(x)))


class LayerInForward(nn.Module):
    """A layer with weights made inside forward: other weights at each call."""

    def forward(self, x: Tensor) -> Any:
        return nn.Linear(8, 4)(x)


class LoopOverBatch(nn.Module):
    """Iterates over a tensor, which no capture does for a dynamic batch."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(8)
        for row in x:
            total = total + row * total.sum()
        return total


class BranchBehindLength(nn.Module):
    """`len` of a tensor, where torch.fx stops, and then what torch.export stops at."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * len(x)
        if y.sum() > 0:
            y = y * 2.0
        return y


class QuantizesBehindLength(nn.Module):
    """Rounds as quantization-aware training does, which torch.export has no shapes for."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * len(x)
        scale, zero = torch.full((1,), 0.05), torch.zeros(1)
        return torch._fake_quantize_learnable_per_tensor_affine(y, scale, zero, -128, 127)


class BranchOnLength(nn.Module):
    """`len` of a tensor and an assert: beyond torch.fx, not beyond torch.export."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()

    def forward(self, x: Tensor) -> Any:
        assert x.dim() == 2
        if len(x.shape) != 2:
            x = x.flatten(1)
        rows = [part + 1.0 for part in (x[:, :4], x[:, 4:])]
        return self.inner(torch.cat(rows, 1)) * len(x)


class LengthAndLoss(nn.Module):
    """A model that only torch.export captures, and a loss on top of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scored = BranchOnLength()

    def forward(self, x: Tensor, label: Tensor) -> Any:
        return nn.MSELoss()(self.scored(x), label)


class TypeSensitive(nn.Module):
    """Asks for a type, which a torch.fx proxy answers otherwise than a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if isinstance(x, Tensor) else x * 3


class OptionalMask(nn.Module):
    """An argument with a default that decides what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.inner(x if mask is None else torch.where(mask, x, torch.zeros_like(x)))


class Noisy(nn.Module):
    """Random in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Counting(nn.Module):
    """Keeps state: in a buffer, in a list and in an attribute, none of which changes its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SmallNet()
        self.register_buffer("calls", torch.zeros(1))
        self.seen: list[Any] = []
        self.last: Any = None

    def forward(self, x: Tensor) -> Any:
        self.seen.append(x.shape)
        self.last = x
        return self.inner(x)


class FixedBatch(nn.Module):
    """A batch of four, written into the forward."""

    def forward(self, x: Tensor) -> Any:
        return x.view(4, 2, 4).sum(1)


class BatchAsNumber(nn.Module):
    """Takes the batch for a Python number, which torch.fx can't and torch.export may fix."""

    def forward(self, x: Tensor) -> Tensor:
        return x / float(x.shape[0])


class EmbeddedIds(nn.Module):
    """Ids `[N, L]` of 10 items become their mean embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(10, 8)
        self.register_buffer("offset", torch.randn(8), persistent=False)

    def forward(self, ids: Tensor) -> Any:
        return self.items(ids).mean(1) + self.offset


@torch.fx.wrap
def scaled(x: Tensor) -> Tensor:
    """Return twice `x`; `torch.fx` doesn't look into it."""
    return x * 2.0


class Wrapped(nn.Module):
    """Calls a function that torch.fx writes by a name that nobody else knows."""

    def forward(self, x: Tensor) -> Tensor:
        return scaled(x) + 1.0


def make(kind: type[nn.Module]) -> nn.Module:
    """Return a seeded model of that class in training mode, with statistics that matter."""
    torch.manual_seed(0)
    model = kind()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            assert part.running_mean is not None
            part.running_mean.normal_()
    return model
