"""Tables of a target's numbers: tolerances needed and agreed, and every comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

from handoff.artifacts.recipe.tolerance import Tolerance, pooled_rmse
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.error_pictures import is_inside, output_name
from handoff.tasks.report.view import Cell, Table, table

COMPARISONS_SHOWN = 200
_OUTPUTS_SHOWN = 40


@dataclass(frozen=True)
class Need:
    """What tolerance one output would need on some inputs, beside what was agreed.

    `share` is how much of the agreed bound the worst element takes, in percent: over 100 it broke
    it. None where the bound is 0, or where nothing finite was compared.
    """

    output: str
    dtype: str
    agreed: Tolerance
    max_abs: float
    required_rtol: float
    rmse_package: float
    rmse_eager: float
    is_accepted: bool

    @property
    def share(self) -> float | None:
        """How much of the agreed `rtol` is needed beside the agreed `atol`, in percent."""
        if not self.agreed.rtol or not math.isfinite(self.required_rtol):
            return None
        return 100.0 * self.required_rtol / self.agreed.rtol


def needs_of(manifest: Manifest, target: TargetRecord, *, special: bool = False) -> list[Need]:
    """Return what each output needs over the ordinary inputs, or over the special ones."""
    found = []
    compared = [d for d in target.deviations if d.special == special and not is_inside(d)]
    for output in sorted({d.output for d in compared}):
        own = [d for d in compared if d.output == output]
        name = output_name(manifest, output)
        found.append(
            Need(
                output=name,
                dtype=own[0].dtype,
                agreed=manifest.recipe.tolerance_for(own[0].dtype, name, target.slug),
                max_abs=max(d.max_abs for d in own),
                required_rtol=max(d.required_rtol for d in own),
                rmse_package=pooled_rmse((d.elements, d.rmse_package) for d in own) or 0.0,
                rmse_eager=pooled_rmse((d.elements, d.rmse_eager) for d in own) or 0.0,
                is_accepted=all(d.accepted for d in own),
            )
        )
    return found[:_OUTPUTS_SHOWN]


def needs_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the tolerance that each output needs on ordinary inputs, beside the agreed one."""
    rows = [
        (
            *_needed(one),
            f"{one.rmse_package:.2e}",
            f"{one.rmse_eager:.2e}",
            f"at most {one.agreed.rmse_factor:g} times eager's",
            _answer(one),
        )
        for one in needs_of(manifest, target)
    ]
    columns = (*_NEEDED, "RMSE to float64", "eager's RMSE", "agreed RMSE", "accepted")
    return table("Ordinary inputs: tolerance needed beside the agreed one", columns, rows)


def special_needs_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the same of special inputs: zeros, extremes, NaN, what the graph itself asks for."""
    rows = [(*_needed(one), _answer(one)) for one in needs_of(manifest, target, special=True)]
    return table("Special inputs", (*_NEEDED, "accepted"), rows)


_NEEDED = (
    "output", "dtype", "max error", "agreed atol", "needs rtol", "agreed rtol", "share of it used",
)  # fmt: skip


def _needed(one: Need) -> tuple[str | Cell, ...]:
    return (
        Cell(one.output, "code"),
        one.dtype,
        f"{one.max_abs:.2e}",
        f"{one.agreed.atol:g}",
        f"{one.required_rtol:.1e}" if one.required_rtol else "none, atol suffices",
        f"{one.agreed.rtol:g}",
        "-" if one.share is None else percent(one.share),
    )


def _answer(one: Need) -> Cell:
    return Cell("yes", "good") if one.is_accepted else Cell("no", "bad")


def percent(share: float) -> str:
    """Return a share that is told in percent, with the digits that tell something."""
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:,.0f} %" if share >= 99.5 else f"{share:.2g} %"


def comparisons_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return every comparison, the refused ones first; of very many the first ones."""
    ordered = sorted(target.deviations, key=lambda one: one.accepted)[:COMPARISONS_SHOWN]
    rows = [
        (
            d.case,
            "-" if is_inside(d) else Cell(output_name(manifest, d.output), "code"),
            f"{d.max_abs:.2e}",
            f"{d.rmse_package:.2e}",
            f"{d.rmse_eager:.2e}",
            f"{d.required_rtol:.1e}",
            Cell("yes", "good") if d.accepted else Cell("no", "bad"),
        )
        for d in ordered
    ]
    columns = ("input", "output", "max error", "RMSE", "eager's RMSE", "needs rtol", "accepted")
    more = len(target.deviations) - len(ordered)
    caption = f"Every comparison ({len(target.deviations)})"
    return table(caption + (f", without {more} more" if more > 0 else ""), columns, rows)
