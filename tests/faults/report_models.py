"""Small models of the kinds that public reports of wrong results are about."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class MinMaxNormalised(nn.Module):
    """Images `[N, 32, 32]` of bytes to numbers between 0 and 1, by each image's own extremes."""

    def forward(self, image: Tensor) -> Any:
        low = image.amin((1, 2), keepdim=True).float()
        high = image.amax((1, 2), keepdim=True).float()
        return (image.float() - low) / torch.clamp(high - low, min=1.0)


class Extreme(nn.Module):
    """Rows `[N, 64]` to one number each: `amax`, `amin`, `argmax` or `argmin`."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, samples: Tensor) -> Any:
        return getattr(torch, self.operator)(samples, 1)


class SurvivesCast(nn.Module):
    """Which of the features `[N, 16]` are the same numbers in a narrower type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Any:
        x = x.float()
        return x == x.to(self.dtype).float()


class Binned(nn.Module):
    """Prices `[N, 24]` to which bin of a width each falls in, counted from 0."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, price: Tensor) -> Any:
        return torch.floor_divide(price, self.width).to(torch.int64)


class Phase(nn.Module):
    """Times `[N, 24]` to where in its period each lies: sine and cosine, and the rest itself."""

    def forward(self, time: Tensor, period: Tensor) -> tuple[Tensor, ...]:
        rest = torch.remainder(time, period)
        turn = rest / period * 6.283185307179586
        return torch.sin(turn), torch.cos(turn), rest


class Enlarged(nn.Module):
    """Feature maps `[N, 4, 6, 6]`, enlarged to their nearest neighbours."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.mix = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return functional.interpolate(self.mix(x), scale_factor=self.factor, mode="nearest")


class RollingWindow(nn.Module):
    """A window `[N, 8, 4]` of the past takes the newest rows in; with `clears`, it is emptied."""

    def __init__(self, *, clears: bool) -> None:
        super().__init__()
        self.clears = clears

    def forward(self, window: Tensor, newest: Tensor) -> Any:
        filled = torch.slice_scatter(window, newest, 1, 6, 8)
        if self.clears:
            window.zero_()
        return filled


class Rescaled(nn.Module):
    """Mantissas `[N, 12]` and exponents of them to numbers."""

    def forward(self, mantissa: Tensor, exponent: Tensor) -> Any:
        return torch.ldexp(mantissa, exponent)
