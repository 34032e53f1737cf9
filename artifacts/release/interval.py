"""Figures as they are written everywhere: with their interval, `1.23 (1.20 to 1.30)`, and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from handoff.artifacts.record import added_field

# Beyond a factor of two between its ends an interval says nothing that can be acted on.
_WIDE = 2.0
# Within a fifth, one that holds 1 does say something: that there is no difference worth having.
_NARROW = 1.2


@dataclass(frozen=True)
class Interval:
    """The median of the rounds' own ratios, and its 95 % interval.

    `is_blurred` where other work took a part of the machine meanwhile: then every round may be off
    in the same way, which no interval over them shows.
    """

    value: float
    low: float
    high: float
    is_blurred: bool = added_field(False)

    @property
    def span(self) -> str:
        """The interval alone: `1.20 to 1.30`."""
        return f"{ratio(self.low)} to {ratio(self.high)}"

    @property
    def holds_one(self) -> bool:
        """Return whether it leaves open which of both is faster."""
        return self.low <= 1.0 <= self.high

    @property
    def is_known(self) -> bool:
        """Return whether it can be acted on: narrower than a factor of two, and beside 1 or near.

        One that holds 1 says which is faster only where it is so narrow that neither is; a blurred
        one has to be as narrow.
        """
        return self.high <= (_NARROW if self.holds_one or self.is_blurred else _WIDE) * self.low

    @property
    def text(self) -> str:
        """The figure with its interval; *not known* where that can't be acted on."""
        return str(self) if self.is_known else f"not known ({self.span})"

    def __str__(self) -> str:
        return f"{ratio(self.value)} ({self.span})"


def ratio(value: float) -> str:
    """Return a ratio in two decimals, a large one whole, and a small one in two digits."""
    if value >= 99.995:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.2g}"


def size(count: int) -> str:
    """Return bytes as people read them: `48.5 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def format_package_size(count: int) -> str:
    """Return the bytes of a package as people read them; '-' where none was made."""
    return size(count) if count else "-"
