"""Tells a fault from eager's own rounding, which a tight enough tolerance refuses as well."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.localizing.measure import Judged, worst

# Another order of summing gives errors of eager's own size, and about as many large ones: of a
# million normal ones the largest is five times their RMSE, and two of those may meet.
_RMSE_FACTOR = 2.0
_LARGEST = 20.0


def is_eagers_own(judged: Judged) -> bool:
    """Tell whether an output lies no further from float64, or from eager, than eager's errors."""
    found = judged.deviation
    return (
        found.mismatched_non_finite == 0
        and found.rmse_eager > 0.0
        and found.rmse_package <= _RMSE_FACTOR * found.rmse_eager
        and found.max_abs <= _LARGEST * found.rmse_eager
    )


def worst_fault(judged: Sequence[Judged]) -> Judged | None:
    """Return the wrong output that is furthest off by more than eager's rounding, or None."""
    return worst([one for one in judged if not is_eagers_own(one)])
