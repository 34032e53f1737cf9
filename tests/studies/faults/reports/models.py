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


class MinimumAndPlace(nn.Module):
    """Readings `[N, 64]` to the smallest of each row and where it is."""

    def forward(self, samples: Tensor) -> tuple[Tensor, ...]:
        values, places = samples.min(1)
        return values, places


class AnyPixel(nn.Module):
    """Masks `[N, 64]` of bytes to a grey value of a byte: is any of a row set?"""

    def forward(self, mask: Tensor) -> Any:
        return mask.any(1) * 200 + 30


class Energy(nn.Module):
    """Amplitudes `[N, 16]` to their energies, in half precision as it was trained."""

    def forward(self, x: Tensor) -> Any:
        half = x.to(torch.float16)
        return (half * half).float()


class OverThreshold(nn.Module):
    """Which of the scores `[N, 16]` are above a threshold in a narrower type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Any:
        return x.to(self.dtype) > 0.1


class Winner(nn.Module):
    """Confidences `[N, 24]` near 1 to the place of the largest in bfloat16, where many tie."""

    def forward(self, x: Tensor) -> Any:
        return (x * 0.01 + 1.0).to(torch.bfloat16).argmax(1)


class Wrapped(nn.Module):
    """Angles `[N, 24]` in half precision, wrapped by a scalar that it can't hold."""

    def __init__(self, operator: str, divisor: float) -> None:
        super().__init__()
        self.operator = operator
        self.divisor = divisor

    def forward(self, angle: Tensor) -> Any:
        return getattr(torch, self.operator)(angle, self.divisor)


class Steps(nn.Module):
    """Features `[N, 16]` in steps of 0.05, kept in a signed byte."""

    def forward(self, x: Tensor) -> Any:
        return torch.round(x / 0.05).to(torch.int8)


class Shares(nn.Module):
    """Amounts `[N, 24]` and what they are divided by to how often it fits."""

    def forward(self, amount: Tensor, unit: Tensor) -> Any:
        return torch.div(amount, unit, rounding_mode="floor")


class Best(nn.Module):
    """Logits `[N, 24]` in bfloat16 to how many tie for the best after scaling."""

    def forward(self, x: Tensor) -> Any:
        scaled = x / 7.0
        return (scaled == scaled.amax(1, keepdim=True)).sum(1)


class Offset(nn.Module):
    """Ids `[N, 9]`, each moved to the numbers of its own column's shard."""

    def __init__(self, shard: int) -> None:
        super().__init__()
        self.shard = shard

    def forward(self, ids: Tensor) -> Any:
        return ids + torch.arange(9) * self.shard


class NormThenCut(nn.Module):
    """Images `[N, 1, 4, 4]` by a convolution and its norm to 50 of 450 features, and a layer.

    `width` is what the features are cut, or filled up, to.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Conv2d(1, 50, 2)
        self.norm = nn.BatchNorm2d(50)
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        h = self.norm(self.conv(x)).flatten(1)
        return self.last(functional.pad(h, (0, self.width - 450)))


class Peaks(nn.Module):
    """Maps `[N, 3, 9, 9]` to the largest of each window, and where it is."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        values, places = functional.max_pool2d(x, 3, 2, return_indices=True)
        return values, places


class Tenths(nn.Module):
    """Lengths `[N, 24]` in half precision to how many whole tenths they hold."""

    def forward(self, x: Tensor) -> Any:
        return torch.floor(x * 10.0)


class LowestQuantised(nn.Module):
    """Signals `[N, 48]` from 0 to 1, quantised to bytes, to the lowest of each."""

    def forward(self, x: Tensor) -> Any:
        return (x * 255).to(torch.uint8).amin(-1).float() / 255


class LateInPeriod(nn.Module):
    """Which of the times `[N, 24]` lie in the later half of their period."""

    def __init__(self, period: float) -> None:
        super().__init__()
        self.period = period

    def forward(self, time: Tensor) -> Any:
        return (time % self.period) > self.period / 2


class BinnedByFeature(nn.Module):
    """Features `[N, 4]` to the bin of each, by widths of their own."""

    widths: Tensor

    def __init__(self, *widths: float) -> None:
        super().__init__()
        self.register_buffer("widths", torch.tensor(widths))

    def forward(self, x: Tensor) -> Any:
        return torch.div(x, self.widths, rounding_mode="floor")


class LostByRounding(nn.Module):
    """Features `[N, 20]` to what a narrower type loses of them."""

    def forward(self, x: Tensor) -> Any:
        return x - x.to(torch.bfloat16).to(torch.float32)


class Stretched(nn.Module):
    """Maps `[N, 3, 9, 5]`, enlarged by a factor along each axis."""

    def __init__(self, height: float, width: float) -> None:
        super().__init__()
        self.factors = (height, width)

    def forward(self, x: Tensor) -> Any:
        return functional.interpolate(x, scale_factor=self.factors, mode="nearest")


class ScaledByExtremes(nn.Module):
    """Rows `[N, 32]` of bytes to numbers from 0 to 1, by both extremes at once."""

    def forward(self, x: Tensor) -> Any:
        low, high = torch.aminmax(x, dim=-1, keepdim=True)
        return (x.float() - low) / (high.float() - low + 1)
