"""A measured figure with its interval, as it is told everywhere: `1.23 (1.20 to 1.30)`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The median of the rounds' own ratios, and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def span(self) -> str:
        """The interval alone: `1.20 to 1.30`."""
        return f"{self.low:.2f} to {self.high:.2f}"

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.span})"
