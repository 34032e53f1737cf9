"""Public reports in PyTorch's tracker of what a table finds wrong: where somebody has told it.

A number stands beside a row that shows the same fault as its report, in an operator and a dtype
that the report names or that are computed alike. A wrong row without one is not known to be
reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from handoff.artifacts.conformance.table import Row

_BYTES = ("int8", "uint8")
_FLOATS = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Report:
    """A report's number, and the operators and dtypes whose rows show what it tells.

    No dtypes stand for all. Where `question` is told, the row has to be wrong under one whose name
    begins so.
    """

    number: int
    operators: tuple[str, ...]
    dtypes: tuple[str, ...] = ()
    question: str = ""


_REPORTS = (
    # Lanes that are not in use leak into the extremum.
    Report(
        191499,
        (
            "amax", "amin", "aminmax", "argmax", "argmin", "max.reduction_no_dim",
            "max.reduction_with_dim", "min.reduction_no_dim", "min.reduction_with_dim",
            "pattern.min_max", "masked.amax", "masked.amin", "masked.argmax", "masked.argmin",
        ),
        _BYTES,
    ),
    Report(197895, ("floor_divide", "div.floor_rounding"), _FLOATS),
    # Digits of a large quotient, and infinite divisors.
    Report(198057, ("remainder", "__rmod__"), _FLOATS),
    Report(197091, ("ldexp",)),
    # The legacy dtype of its result.
    Report(198081, ("any",), ("uint8",)),
    Report(
        198201, ("nn.functional.interpolate.nearest", "nn.functional.upsample_nearest")
    ),
    Report(198094, ("pattern.scatter_then_overwrite",)),
    Report(185337, ("pattern.half_and_back", "pattern.bfloat16_and_back")),
    # The mean of nothing.
    Report(197108, ("var_mean.unbiased", "std_mean.unbiased"), _FLOATS, "as sampled"),
)  # fmt: skip


def with_reports(row: Row) -> Row:
    """Return a wrong row with the numbers of the public reports that tell of it."""
    if row.standing != "wrong":
        return row
    numbers = tuple(
        one.number for one in _REPORTS
        if row.operator in one.operators
        and (not one.dtypes or row.dtype in one.dtypes)
        and any(question.startswith(one.question) for question in row.questions)
    )  # fmt: skip
    return replace(row, reports=numbers)
