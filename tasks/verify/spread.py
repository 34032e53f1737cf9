"""Spread: how the errors of an output lie, counted case by case in bins of half a decade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from handoff.artifacts.recipe.tolerance import HIGHEST_BIN, LOWEST_BIN, ErrorSpread
from handoff.tasks.verify.elements import finite_in_all

# Of more outputs than this a page shows no pictures, and a record holds no counts.
OUTPUTS_COUNTED = 8
_WIDTH = HIGHEST_BIN - LOWEST_BIN + 1


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
        """Count the elements of one case; nothing where they can't be compared."""
        if package.shape != eager.shape or not eager.is_floating_point():
            return
        got, want, exact = finite_in_all(package, eager, float64)
        self._elements += want.numel()
        self._squares += float(want.square().sum())
        both = _bins(want.abs()) * _WIDTH + _bins((got - want).abs())
        self._apart.update(_counted(both))
        self._package.update(_counted(_bins((got - exact).abs())))
        self._eager.update(_counted(_bins((want - exact).abs())))

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
    """Return each size's bin, counted from the lowest one."""
    exponents = torch.floor(2.0 * torch.log10(sizes))
    return exponents.clamp(LOWEST_BIN, HIGHEST_BIN).long() - LOWEST_BIN


def _counted(bins: torch.Tensor) -> dict[int, int]:
    counts = torch.bincount(bins.flatten())
    return {int(place): int(counts[place]) for place in counts.nonzero().flatten()}


def _rows(counts: Counter[int]) -> tuple[tuple[int, ...], ...]:
    return tuple((place + LOWEST_BIN, count) for place, count in sorted(counts.items()))
