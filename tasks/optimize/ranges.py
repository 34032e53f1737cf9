"""Ranges that torch computed for a size, as those of a dimension."""

from __future__ import annotations

from typing import Any

from handoff.artifacts.delivery.signature import Dimension

# Beyond any tensor's size, and a whole number to whoever reads a record's numbers as float64.
LARGEST_SIZE = 1 << 48


def to_dimension(bounds: Any) -> Dimension:  # noqa: ANN401 - torch's ValueRanges, of sympy's numbers
    """Return the range, from 0 to the largest size where torch knows no nearer ends.

    An open end is one of several infinities to torch, some of which are no `int`.
    """
    low, high = (
        int(end) if end.is_Rational or end.is_Float else otherwise
        for end, otherwise in ((bounds.lower, 0), (bounds.upper, LARGEST_SIZE))
    )
    low = min(max(low, 0), LARGEST_SIZE)
    return Dimension(low, min(max(high, low), LARGEST_SIZE))
