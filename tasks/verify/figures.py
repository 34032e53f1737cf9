"""Figures beside the rules: how one output's errors lie, for people and pages to look at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch

from handoff.artifacts.recipe.tolerance import HIGHEST_BIN, LOWEST_BIN, ErrorFigures, ErrorSpread
from handoff.tasks.verify.elements import finite_in_all

_QUANTILES = (0.5, 0.99, 0.999)
_TOP = 5

# Of more outputs than this a page shows no pictures, and a record holds no counts.
OUTPUTS_COUNTED = 8
_WIDTH = HIGHEST_BIN - LOWEST_BIN + 1


def measure(
    package: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor
) -> ErrorFigures | None:
    """Return the figures of a floating-point output; None where there is nothing to measure.

    All three have one shape, which may be any; `top1` and `top5` are those of `[rows, classes]`
    alone. Only elements that are finite in all three count. The SNR is in decibels, `ulp` in units
    in the last place of eager's dtype.
    """
    if not eager.is_floating_point():
        return None
    got, want, exact = finite_in_all(package, eager, float64)
    if not got.numel():
        return None
    top1, top5 = None, None
    if got.numel() == package.numel():
        top1, top5 = _top_agreement(got.view(package.shape), want.view(package.shape))
    distance = (got - want).abs()
    return ErrorFigures(
        cosine=_cosine(got, exact),
        snr_db=_snr(got - exact, exact),
        quantiles=_quantiles(distance),
        ulp=_ulp(distance, want, eager.dtype),
        top1=top1,
        top5=top5,
    )


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    lengths = float(left.norm()) * float(right.norm())
    if lengths == 0.0:
        return 1.0 if torch.equal(left, right) else 0.0
    return min(1.0, float(torch.dot(left.flatten(), right.flatten())) / lengths)


def _snr(noise: torch.Tensor, signal: torch.Tensor) -> float:
    power, disturbance = float(signal.square().sum()), float(noise.square().sum())
    if disturbance == 0.0:
        return math.inf
    return 10.0 * math.log10(power / disturbance) if power else -math.inf


def _quantiles(distance: torch.Tensor) -> tuple[float, ...]:
    # By rank, because torch.quantile takes no more than 16 million elements.
    count = distance.numel()
    ranks = [min(count, max(1, math.ceil(q * count))) for q in _QUANTILES]
    return tuple(float(distance.kthvalue(rank).values) for rank in ranks)


def _ulp(distance: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    kind = torch.finfo(dtype)
    # An element near zero carries the rounding of terms of the output's own size.
    size = want.abs().clamp_min(float(want.square().mean().sqrt())).clamp_min(kind.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * kind.eps
    return float((distance / unit).max())


def _top_agreement(got: torch.Tensor, want: torch.Tensor) -> tuple[float | None, float | None]:
    """Return in what share of the rows the first class, and the set of five, are the same.

    Both outputs are `[rows, classes]`; of other shapes, or too few classes, None stands for it.
    """
    if want.dim() != 2 or want.shape[1] < 2 or not want.shape[0]:
        return None, None
    first = float((got.argmax(1) == want.argmax(1)).double().mean())
    if want.shape[1] <= _TOP:
        return first, None
    sets = [values.topk(_TOP, dim=1).indices.sort(dim=1).values for values in (got, want)]
    return first, float((sets[0] == sets[1]).all(dim=1).double().mean())


class SpreadCount:
    """Counts the elements of one floating-point output by their errors' sizes."""

    def __init__(self, output: int) -> None:
        """Begin with no elements."""
        self._output = output
        self._elements, self._squares = 0, 0.0
        self._apart: Counter[int] = Counter()
        self._package: Counter[int] = Counter()
        self._eager: Counter[int] = Counter()

    def add(self, package: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor) -> None:
        """Count the elements of one case; nothing where they can't be compared.

        They may be of any shape and floating-point dtype; eager's shape has to be the package's.
        """
        if package.shape != eager.shape or not eager.is_floating_point():
            return
        got, want, exact = finite_in_all(package, eager, float64)
        self._elements += want.numel()
        self._squares += float(want.square().sum())
        both = _bins(want.abs()) * _WIDTH + _bins((got - want).abs())
        self._apart.update(_count_bins(both))
        self._package.update(_count_bins(_bins((got - exact).abs())))
        self._eager.update(_count_bins(_bins((want - exact).abs())))

    @property
    def spread(self) -> ErrorSpread | None:
        """What was counted; None where nothing was."""
        if not self._elements:
            return None
        apart = (
            (both // _WIDTH + LOWEST_BIN, both % _WIDTH + LOWEST_BIN, count)
            for both, count in sorted(self._apart.items())
        )
        return ErrorSpread(
            self._output,
            self._elements,
            (self._squares / self._elements) ** 0.5,
            tuple(apart),
            _rows(self._package),
            _rows(self._eager),
        )


def spreads_of(counts: Iterable[SpreadCount]) -> tuple[ErrorSpread, ...]:
    """Return the spreads of those outputs of which anything was counted."""
    return tuple(spread for count in counts if (spread := count.spread) is not None)


def _bins(sizes: torch.Tensor) -> torch.Tensor:
    """Return each size's bin, half a power of ten wide, counted from the lowest one: int64."""
    exponents = torch.floor(2.0 * torch.log10(sizes))
    return exponents.clamp(LOWEST_BIN, HIGHEST_BIN).long() - LOWEST_BIN


def _count_bins(bins: torch.Tensor) -> dict[int, int]:
    counts = torch.bincount(bins.flatten())
    return {int(bin_index): int(counts[bin_index]) for bin_index in counts.nonzero().flatten()}


def _rows(counts: Counter[int]) -> tuple[tuple[int, ...], ...]:
    return tuple((bin_index + LOWEST_BIN, count) for bin_index, count in sorted(counts.items()))
