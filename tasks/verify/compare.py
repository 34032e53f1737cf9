"""Compare one output of a package with eager and with float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from handoff.artifacts.recipe.tolerance import FEW, Deviation, Tolerance, luck
from handoff.tasks.verify.elements import (
    FEWEST_RUNS,
    MOST_AT_STEPS,
    Moves,
    align_outputs,
    are_mismatched,
    judge_elements,
    root_mean_square,
    select,
)
from handoff.tasks.verify.figures import measure
from handoff.tasks.verify.inputs.special import ValueKind
from handoff.tasks.verify.scale import NO_SCALE, Scale


@dataclass(frozen=True)
class TypicalErrorSize:
    """Eager's RMSE to float64 over many cases, the same relative to the output's RMS, and that.

    `move_ratio` is how many times that error rounding moves the output by, as one case has shown:
    by luck eager may be nearer to float64 than its operations are in another order. 0 where no case
    has asked.
    """

    rmse: float
    relative: float
    rms: float = 0.0
    move_ratio: float = 0.0


EXACT_EVERYWHERE = TypicalErrorSize(0.0, 0.0)


def compare(
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: int,
    case: str,
    typical: TypicalErrorSize = EXACT_EVERYWHERE,
    values: ValueKind = "drawn",
    moved: Moves | None = None,
    noise: Scale = NO_SCALE,
    scale: Scale = NO_SCALE,
) -> Deviation:
    """Return how far `package` lies from `eager`, and each rule that it breaks, as a reason.

    `typical` is eager's error on this output over all cases (`typical_error`), `scale` what size
    is usual for each of its elements, and `values` the kind that the inputs are of. On drawn inputs
    the elements and the RMSE are judged; on others the elements alone, because their errors are
    alike and add up, or are those of a few at steps.

    `moved` returns how far rounding alone moves each element, over so many runs
    (`Conditioning.moved`); it is asked only where an element lies outside what was agreed, and
    nothing moves without it. An element may be off by as much more as it moves, and a whole number
    or a truth may be another one where it becomes another one when it is moved. Where rounding
    moves elements by about their own size, they are not comparable, and counted. What eager
    is off by itself lets most off without asking; `noise` is how far it usually is, by features.

    They may be of any shape, and of any dtype of real numbers; `float64` is eager's output computed
    in float64, of the same shape. `moved` gives float64 of that shape, too. The rules are
    `Tolerance`'s. Elements that are not finite in eager have to be equal (NaN to NaN) and are left
    out of the figures; one that is as special as in float64 is right whatever eager gives (its gelu
    of infinity is NaN), and so is one that rounding makes special. Where numbers leave the range,
    it is the order of operations that makes infinity or NaN of an element (inf - inf): either does.
    Where the package's shape or dtype isn't eager's, that is the only reason.
    """
    if package.shape != eager.shape or package.dtype != eager.dtype:
        return _form_mismatch(package, eager, output, case)
    elements = align_outputs(package, eager, float64, scale)
    mismatched = are_mismatched(elements.special, package, eager, float64, tolerance, values=values)
    judgement = judge_elements(
        elements, tolerance.atol + tolerance.rtol * elements.size, mismatched, moved,
        noise=noise, noise_limit=_noise_limit(tolerance, typical),
    )  # fmt: skip
    distance = select(elements.distance, elements.finite)
    want, size = select(elements.want, elements.finite), select(elements.size, elements.finite)
    deviation = Deviation(
        output, case, _dtype_name(eager), eager.numel(),
        max_abs=_max_or_zero(distance), max_rel=_max_relative(distance, want),
        rmse_package=root_mean_square(select(elements.got - elements.exact, judgement.usable)),
        rmse_eager=root_mean_square(select(elements.want - elements.exact, judgement.usable)),
        rms=root_mean_square(select(elements.exact, judgement.usable)),
        required_rtol=_required_rtol(
            distance - select(judgement.room, elements.finite), size, tolerance.atol
        ),
        non_finite=int((~torch.isfinite(eager)).sum()),
        mismatched_non_finite=int(judgement.mismatched.sum()),
        figures=measure(package, eager, float64),
        at_step=judgement.at_step, incomparable=judgement.incomparable,
    )  # fmt: skip
    judged_by = typical if values == "drawn" else None
    return _with_reasons(deviation, judgement.beyond, tolerance, judged_by, moved)


def _noise_limit(tolerance: Tolerance, typical: TypicalErrorSize) -> float:
    """Return how many times as far from float64 as eager a package may usually be."""
    if typical.rmse == 0.0:
        return 1.0
    floor = tolerance.rmse_floor * typical.rms
    return max(1.0, tolerance.rmse_factor + floor / typical.rmse)


def _form_mismatch(package: torch.Tensor, eager: torch.Tensor, output: int, case: str) -> Deviation:
    """Return the deviation of an output whose shape or dtype isn't eager's."""
    reason = (
        f"expected {_dtype_name(eager)} of shape {list(eager.shape)}, "
        f"got {_dtype_name(package)} of shape {list(package.shape)}"
    )
    inf = float("inf")
    return Deviation(
        output,
        case,
        _dtype_name(eager),
        eager.numel(),
        inf,
        inf,
        inf,
        0.0,
        0.0,
        inf,
        reasons=(reason,),
    )


def typical_error(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> TypicalErrorSize:
    """Return eager's error over all pairs of eager's output and the same in float64.

    They may be of any shape; pairs of unequal shapes, and whole numbers and truths, count for
    nothing. An output of few elements says little of eager's precision; all of its cases together
    do.
    """
    error, total, count = 0.0, 0.0, 0
    for eager, float64 in pairs:
        if eager.shape != float64.shape or not eager.is_floating_point():
            continue
        exact, got = float64.double(), eager.double()
        usable = torch.isfinite(exact) & torch.isfinite(got)
        error += float(select(got - exact, usable).square().sum())
        total += float(select(exact, usable).square().sum())
        count += int(usable.sum())
    return TypicalErrorSize(
        rmse=math.sqrt(error / count) if count else 0.0,
        relative=math.sqrt(error / total) if total > 0.0 else 0.0,
        rms=math.sqrt(total / count) if count else 0.0,
    )


def _with_reasons(
    measured: Deviation,
    beyond: int,
    tolerance: Tolerance,
    typical: TypicalErrorSize | None,
    moved: Moves | None,
) -> Deviation:
    reasons = []
    if measured.mismatched_non_finite:
        reasons.append(
            f"{measured.mismatched_non_finite} of {measured.non_finite} elements that are NaN or "
            "infinite in eager are something else in the package"
        )
    if beyond:
        reasons.append(
            f"{beyond} of {measured.elements} elements lie outside atol "
            f"{tolerance.atol:g} and rtol {tolerance.rtol:g}: the largest difference is "
            f"{measured.max_abs:.3g}, {_format_required_rtol(measured.required_rtol)}"
        )
    usual = MOST_AT_STEPS * measured.elements
    # Of few elements more than their share are at a step by luck: all cases together show.
    if typical is not None and is_decision(measured) and measured.at_step > usual + 3 * usual**0.5:
        reasons.append(describe_decisions(measured.at_step, measured.elements))
    if typical is not None:
        rmse_reasons = _judge_rmse(measured, tolerance, typical)
        # Eager may be nearer to float64 than it would be with the same operations in another order.
        if rmse_reasons and typical.move_ratio > 0.0:
            usual = typical.move_ratio * measured.rmse_eager
            rmse_reasons = _judge_rmse(
                measured, tolerance, replace(typical, rmse=usual), alike=False
            )
        if rmse_reasons and moved is not None:
            values = moved(FEWEST_RUNS)
            usual = root_mean_square(select(values, torch.isfinite(values)))
            rmse_reasons = _judge_rmse(
                measured, tolerance, replace(typical, rmse=usual), alike=False
            )
        reasons += rmse_reasons
    return Deviation(**{**vars(measured), "reasons": tuple(reasons)})


def is_decision(measured: Deviation) -> bool:
    """Return whether the output holds whole numbers or truths: rounding decides them or doesn't."""
    return "float" not in measured.dtype


def describe_decisions(at_step: int, elements: int) -> str:
    """Return the reason against too many elements that only rounding can have decided."""
    return (
        f"{at_step} of {elements} elements are decided otherwise than in eager, where rounding "
        f"decides them: more than {MOST_AT_STEPS:.0%}"
    )


def _judge_rmse(
    measured: Deviation, tolerance: Tolerance, typical: TypicalErrorSize, *, alike: bool = True
) -> list[str]:
    factor, eager = tolerance.rmse_factor, measured.rmse_eager
    if factor > 1.0:
        factor *= luck(measured.elements)
    if not alike or measured.elements < FEW:
        # Of one element eager may be right by luck, and the element near zero by luck: eager is
        # taken for as exact as it is elsewhere.
        eager = max(eager, typical.rmse, typical.relative * measured.rms)
    # Of an output that is small by luck, or by cancelling, the last places are those of its terms.
    allowed = factor * eager + tolerance.rmse_floor * max(measured.rms, typical.rms)
    if measured.dtype == "float64":
        # There is nothing more exact to compare with: eager's error is 0, whatever it is.
        allowed += tolerance.atol
    if not measured.rmse_package <= allowed:
        return [
            f"its RMSE to float64 is {measured.rmse_package:.3g}, and {factor:.3g} times eager's "
            f"{eager:.3g} allows {allowed:.3g}"
        ]
    return []


def _required_rtol(distance: torch.Tensor, size: torch.Tensor, room: float) -> float:
    # What is not a number, or differs from nothing but zeros, no relative bound lets through.
    ratio = torch.where(distance <= room, 0.0, (distance - room) / size)
    return _max_or_zero(ratio.nan_to_num(nan=math.inf, posinf=math.inf))


def _format_required_rtol(required_rtol: float) -> str:
    if math.isinf(required_rtol):
        return "which no rtol allows"
    return f"which would need rtol {required_rtol:.3g}"


def _dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's dtype: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _max_or_zero(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _max_relative(distance: torch.Tensor, want: torch.Tensor) -> float:
    nonzero = want != 0
    return _max_or_zero(select(distance, nonzero) / select(want, nonzero).abs())
