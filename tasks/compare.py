"""Compare one output of a package with eager and with float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from artifacts.tolerance import FEW, Deviation, Tolerance, luck
from tasks.figures import measure
from tasks.special import ALIKE, OVERFLOWING, Values


@dataclass(frozen=True)
class Typical:
    """Eager's RMSE to float64 over many cases, the same relative to the output's RMS, and that."""

    rmse: float
    relative: float
    rms: float = 0.0


EXACT_EVERYWHERE = Typical(0.0, 0.0)


def compare(
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: int,
    case: str,
    typical: Typical = EXACT_EVERYWHERE,
    values: Values = "drawn",
) -> Deviation:
    """Return how far `package` lies from `eager`, and each rule that it breaks, as a reason.

    `typical` is eager's error on this output over all cases (`typical_error`), and `values` the
    kind that the inputs are of. Where all are alike (zeros, one row repeated) the errors are alike,
    too, and add up: an RMSE has nothing to be judged by there, so that the elements alone are.
    Where numbers leave the range, it is the order of operations that makes infinity or NaN of an
    element (inf - inf): either does.

    All three have the same shape; `float64` is the same output computed in float64. The rules are
    `Tolerance`'s. Elements that are not finite in eager have to be equal (NaN to NaN) and are left
    out of the figures; one that is as special as in float64 is right whatever eager gives (its
    gelu of infinity is NaN). A shape or dtype that differs is a reason of its own.
    """
    if package.shape != eager.shape or package.dtype != eager.dtype:
        return _of_another_form(package, eager, output, case)
    special = ~torch.isfinite(eager)
    as_float64 = ~torch.isfinite(float64) & same_elements(_wide(package), _wide(float64))
    mismatched = special & ~as_float64 & _are_mismatched(package, eager, float64, tolerance, values)
    finite = ~special & ~as_float64
    got, want, exact = (_wide(t)[finite] for t in (package, eager, float64))
    # What float64 can't hold apart (its own overflow, say) can't judge either of the others.
    usable = torch.isfinite(exact)
    distance = (got - want).abs()
    if not eager.is_floating_point():
        differs = _differ(package, eager, float64)[finite]
        distance = torch.where(differs, distance.clamp_min(1.0), 0.0)
    size = want.abs().clamp_min(root_mean_square(want))
    own_error = (want - exact)[usable]
    room = _room(tolerance, own_error) if eager.is_floating_point() else tolerance.atol
    deviation = Deviation(
        output, case, _name(eager), eager.numel(),
        max_abs=_largest(distance), max_rel=_largest_relative(distance, want),
        rmse_package=root_mean_square((got - exact)[usable]),
        rmse_eager=root_mean_square(own_error), rms=root_mean_square(exact[usable]),
        required_rtol=_required_rtol(distance, size, room),
        non_finite=int(special.sum()), mismatched_non_finite=int(mismatched.sum()),
        figures=measure(package, eager, float64),
    )  # fmt: skip
    # `not <=` rather than `>`: a NaN in the package is no deviation that passes.
    outside = ~(distance <= room + tolerance.rtol * size)
    like = None if values in ALIKE else typical
    return _with_reasons(deviation, int(outside.sum()), tolerance, like)


def _of_another_form(
    package: torch.Tensor, eager: torch.Tensor, output: int, case: str
) -> Deviation:
    """Return the deviation of an output whose shape or dtype isn't eager's."""
    reason = (
        f"expected {_name(eager)} of shape {list(eager.shape)}, "
        f"got {_name(package)} of shape {list(package.shape)}"
    )
    inf = float("inf")
    return Deviation(
        output, case, _name(eager), eager.numel(), inf, inf, inf, 0.0, 0.0, inf, reasons=(reason,)
    )


def _are_mismatched(
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor,
    tolerance: Tolerance,
    values: Values,
) -> torch.Tensor:
    """Tell for each element whether it may not stand where eager's is NaN or infinite."""
    mismatched = ~same_elements(package, eager) & ~_is_near(package, float64, tolerance)
    if values in OVERFLOWING:
        # Of float64 nothing tells what is left when a product leaves the range on the way.
        mismatched &= torch.isfinite(package) & (eager.dtype is not torch.float64)
    return mismatched


def _differ(package: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor) -> torch.Tensor:
    """Tell for each element, of whole numbers or decisions, whether it is another than eager's."""
    # Those beyond 2^53 can be the same number in float64. What a near tie has decided may be
    # decided as in float64, too.
    decided = (package == float64) & (eager.double() != float64.double())
    return (package != eager) & ~decided


def _room(tolerance: Tolerance, own_error: torch.Tensor) -> float:
    """Return what every element may be off, whatever its size; `own_error` is that of eager."""
    # Where eager itself is further off than the bound, no package can be held to it.
    largest = _largest(own_error.abs())
    return tolerance.atol + (tolerance.rmse_factor * largest if largest else 0.0)


def _is_near(package: torch.Tensor, float64: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Tell for each element whether it is finite and within the bound of a finite float64."""
    got, exact = _wide(package), _wide(float64)
    finite = torch.isfinite(got) & torch.isfinite(exact)
    size = exact.abs().clamp_min(root_mean_square(exact[torch.isfinite(exact)]))
    return finite & ((got - exact).abs() <= tolerance.atol + tolerance.rtol * size)


def typical_error(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Typical:
    """Return eager's error over all pairs of eager's output and the same in float64.

    An output of few elements tells little of eager's precision; all of its cases together do.
    """
    error, total, count = 0.0, 0.0, 0
    for eager, float64 in pairs:
        if eager.shape != float64.shape or not eager.is_floating_point():
            continue
        exact, got = float64.double(), eager.double()
        usable = torch.isfinite(exact) & torch.isfinite(got)
        error += float((got - exact)[usable].square().sum())
        total += float(exact[usable].square().sum())
        count += int(usable.sum())
    return Typical(
        rmse=math.sqrt(error / count) if count else 0.0,
        relative=math.sqrt(error / total) if total > 0.0 else 0.0,
        rms=math.sqrt(total / count) if count else 0.0,
    )


def _with_reasons(
    measured: Deviation,
    outside: int,
    tolerance: Tolerance,
    typical: Typical | None,
) -> Deviation:
    reasons = []
    if measured.mismatched_non_finite:
        reasons.append(
            f"{measured.mismatched_non_finite} of {measured.non_finite} elements that are NaN or "
            "infinite in eager are something else in the package"
        )
    if outside:
        reasons.append(
            f"{outside} of {measured.elements} elements lie outside atol "
            f"{tolerance.atol:g} and rtol {tolerance.rtol:g}: the largest difference is "
            f"{measured.max_abs:.3g}, {_what_is_needed(measured.required_rtol)}"
        )
    if typical is not None:
        reasons += _judge_rmse(measured, tolerance, typical)
    return Deviation(**{**vars(measured), "reasons": tuple(reasons)})


def _judge_rmse(measured: Deviation, tolerance: Tolerance, typical: Typical) -> list[str]:
    factor, eager = tolerance.rmse_factor, measured.rmse_eager
    if factor > 1.0:
        factor *= luck(measured.elements)
    if measured.elements < FEW:
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
    return _largest(ratio.nan_to_num(nan=math.inf, posinf=math.inf))


def _what_is_needed(required_rtol: float) -> str:
    if math.isinf(required_rtol):
        return "which no rtol allows"
    return f"which would need rtol {required_rtol:.3g}"


def same_elements(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Tell for each element whether both are the same number, or both NaN."""
    return (left == right) | (left.isnan() & right.isnan())


def identical(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Tell whether both are the same tensors: dtypes, shapes and every element, NaN beside NaN."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and bool(same_elements(a, b).all())
        for a, b in zip(left, right, strict=True)
    )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


def _name(tensor: torch.Tensor) -> str:
    """Return the name of the tensor's dtype: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _largest_relative(distance: torch.Tensor, want: torch.Tensor) -> float:
    nonzero = want != 0
    return _largest(distance[nonzero] / want[nonzero].abs())


def root_mean_square(values: torch.Tensor) -> float:
    """Return the root of the mean of the squares; 0 of nothing."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
