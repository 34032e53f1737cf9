"""Chooses what 256 steps are to span, of the values that a tensor had."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Of each tensor so many values are looked at in a batch, evenly spread, and so many batches.
_VALUES_A_BATCH = 1 << 14
_BATCHES = 64
# Beside the whole range: parts of it, and percentiles at both ends.
_PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_TAILS = (1e-4, 1e-3, 1e-2)
LEVELS = 255


@dataclass(frozen=True)
class Grid:
    """The 256 numbers that a tensor can hold: `(q - zero) * scale` for q from 0 to 255."""

    scale: float
    zero: int

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the grid that are nearest, in the tensor's own shape and dtype."""
        steps = torch.clamp(torch.round(tensor / self.scale) + self.zero, 0, LEVELS)
        return (steps - self.zero) * self.scale


def grid_of(low: float, high: float) -> Grid:
    """Return the grid that spans both and has a zero of its own, as padding asks for."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, torch.finfo(torch.float32).tiny)
    return Grid(scale, round(-low / scale))


class Observer:
    """Sees a tensor's values batch by batch, and chooses the grid that rounds them least.

    Method: minimal mean squared error among clippings (Sung et al., 2015; MSE observer), of which
    the whole range (min-max) and percentiles are some, so that each is taken where it wins.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._low, self._high = 0.0, 0.0
        self._seen: list[torch.Tensor] = []

    def see(self, tensor: torch.Tensor) -> None:
        """Take in a batch's values: a floating-point tensor of any shape; what isn't finite not."""
        flat = tensor.detach().flatten()
        flat = flat[flat.isfinite()]
        if not flat.numel():
            return
        self._low = min(self._low, float(flat.min()))
        self._high = max(self._high, float(flat.max()))
        if len(self._seen) < _BATCHES:
            step = -(-flat.numel() // _VALUES_A_BATCH)
            self._seen.append(flat[::step].double())

    def grid(self) -> Grid:
        """Return the grid to use; one of zeros alone where nothing else was seen."""
        whole = grid_of(self._low, self._high)
        if not self._seen:
            return whole
        values = torch.cat(self._seen)
        ends = torch.tensor([end for tail in _TAILS for end in (tail, 1 - tail)]).double()
        # torch.quantile takes 16 million elements at most.
        found = torch.quantile(values[: 1 << 24], ends).tolist()
        ranges = [(self._low * part, self._high * part) for part in _PARTS]
        ranges += list(zip(found[::2], found[1::2], strict=True))
        grids = [whole, *(grid_of(low, high) for low, high in ranges)]
        return min(grids, key=lambda grid: float((grid.rounded(values) - values).square().mean()))
