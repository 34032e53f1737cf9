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
    """What tolerance one output would need, beside what was agreed.

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


def needs_of(manifest: Manifest, target: TargetRecord) -> list[Need]:
    """Return what each output needs over all inputs that it was compared on."""
    found = []
    for output in sorted({d.output for d in target.deviations if not is_inside(d)}):
        own = [d for d in target.deviations if d.output == output and not is_inside(d)]
        usual = [d for d in own if not d.special]
        name = output_name(manifest, output)
        found.append(
            Need(
                output=name,
                dtype=own[0].dtype,
                agreed=manifest.recipe.tolerance_for(own[0].dtype, name, target.slug),
                max_abs=max(d.max_abs for d in own),
                required_rtol=max(d.required_rtol for d in own),
                rmse_package=pooled_rmse((d.elements, d.rmse_package) for d in usual) or 0.0,
                rmse_eager=pooled_rmse((d.elements, d.rmse_eager) for d in usual) or 0.0,
                is_accepted=all(d.accepted for d in own),
            )
        )
    return found[:_OUTPUTS_SHOWN]


def needs_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the tolerance that each output needs beside the agreed one."""
    rows = [
        (
            Cell(one.output, "code"),
            one.dtype,
            f"{one.max_abs:.2e}",
            f"{one.agreed.atol:g}",
            f"{one.required_rtol:.1e}" if one.required_rtol else "0: atol alone does",
            f"{one.agreed.rtol:g}",
            "-" if one.share is None else f"{one.share:.3g} %",
            f"{one.rmse_package:.2e}",
            f"{one.rmse_eager:.2e}, {one.agreed.rmse_factor:g} times it allowed",
            Cell("yes", "good") if one.is_accepted else Cell("no", "bad"),
        )
        for one in needs_of(manifest, target)
    ]
    columns = (
        "output", "dtype", "max error", "agreed atol", "needs rtol", "agreed rtol", "of it used",
        "RMSE to float64", "eager's", "accepted",
    )  # fmt: skip
    return table("Tolerance needed beside the agreed one", columns, rows)


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
