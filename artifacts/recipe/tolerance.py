"""What was agreed (`Tolerance`) and what was measured (`Deviation`): two types, never mixed up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from handoff.artifacts.record import added_field


@dataclass(frozen=True)
class Tolerance:
    """How far a package's output may lie from eager's.

    Both rules have to hold, per output and input:

    - `|package - eager| <= atol + rtol * max(|eager|, RMS(eager))` for every element, compared in
      float64 (an element that happens to be near zero was summed from terms of the output's own
      size, and carries their rounding; where an output holds unlike things side by side, it is the
      RMS of the feature), with room for twice what rounding alone moves that element by, which is
      measured (`tasks.verify.conditioning`), and
    - `RMSE(package, f64) <= rmse_factor * RMSE(eager, f64) + rmse_floor * RMS(f64)`, where f64 is
      the same model run in float64: the oracle of `torch._dynamo.utils.same`, PyTorch's own, whose
      factor of 2 is taken over. Its absolute allowance is replaced by one relative to the output's
      own size, so that the rule means something for an output of any magnitude, and its factor
      of 3 below 1000 elements by 2 times `luck(elements)`: of few elements an RMSE says little.
    """

    atol: float = 1e-6
    """Absolute room for each element."""
    rtol: float = 1e-5
    """Room relative to the element, or to the output's RMS where that is larger."""
    rmse_factor: float = 2.0
    """How many times as far from float64 as eager the package may be."""
    rmse_floor: float = 5e-7
    """Room in the package's RMSE, relative to the output's RMS in float64."""

    def __post_init__(self) -> None:
        """Check that every bound is a finite number of 0 or more."""
        for name in ("atol", "rtol", "rmse_factor", "rmse_floor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"expected {name} to be a finite number of 0 or more, got {value}")


# Half the distance from 1 to the next number of a dtype: two of its numbers, of whatever size, lie
# at least so much of it apart.
SPACING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def why_too_fine(agreed: Tolerance, dtype: str, size: float = 0.0) -> tuple[str, str] | None:
    """Return what a tolerance should be and what it is, where it is finer than the `dtype`.

    It is where two numbers of the dtype that lie within it can only be the same one: by an `rtol`
    below its spacing, or, for an output of the root mean square `size`, by an `atol` below that
    with no `rtol` beside it. Zero for both is no mistake: it asks for the same bits.
    """
    spacing = SPACING.get(dtype)
    if spacing is None:
        return None
    if 0.0 < agreed.rtol < spacing:
        expected = (
            f"an rtol of at least {spacing:.1e}, since two {dtype} numbers lie at least so much "
            "of their size apart; or 0, where atol alone is meant"
        )
        return expected, f"rtol = {agreed.rtol:g}"
    if agreed.rtol == 0.0 and 0.0 < agreed.atol < spacing * size:
        expected = (
            f"an atol of at least {spacing * size:.1e}, since two {dtype} numbers of the output's "
            f"own size ({size:.2g}) lie at least so far apart"
        )
        return expected, f"atol = {agreed.atol:g}, and rtol = 0"
    return None


# Below this number of elements an RMSE says more of luck than of a precision.
FEW = 1000


def luck(elements: int) -> float:
    """Return how much larger than its expectation an RMSE of so many errors may be by chance.

    Once in a million times it is larger, for errors that are independent and normal: the root of
    the chi-squared quantile over the degrees of freedom, by Wilson and Hilferty, The distribution
    of chi-square, 1931. 5.2 for one element, 2.3 for ten, 1.1 for a thousand.
    """
    spread = 2.0 / (9.0 * max(elements, 1))
    return float((1.0 - spread + 4.7534 * math.sqrt(spread)) ** 1.5)


# Why these: the prototype measured about 1e-8 on the CPU for outputs of order 0.1 to 1. Float32
# carries 6e-8 of relative error in one operation and loses one to two digits over a deep network,
# so 1e-5 relative is what `torch.testing.assert_close` (1.3e-6) allows, with room for a sum's
# reordering. The floor of the RMSE is four units in the last place: a package of ResNet-18, in
# another layout, is up to 2.2 times as far from float64 as eager; and where eager is exact, twice
# that is nothing.
DEFAULT_TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(atol=1e-12, rtol=1e-10, rmse_floor=1e-15),
    "float32": Tolerance(),
    "float16": Tolerance(atol=1e-3, rtol=1e-2, rmse_factor=3.0, rmse_floor=1e-4),
    "bfloat16": Tolerance(atol=1e-2, rtol=1.6e-2, rmse_factor=3.0, rmse_floor=1e-3),
}

# The prototype measured about 1e-5 between a CUDA package and eager on the CPU, for outputs of
# order 0.1 to 1: another library's convolutions and products, summed in another order, and other
# functions.
CUDA_TOLERANCES: dict[str, Tolerance] = {
    **DEFAULT_TOLERANCES,
    "float32": Tolerance(atol=1e-5, rtol=1e-4, rmse_factor=4.0, rmse_floor=1e-6),
}

# Integers and booleans are exact.
EXACT = Tolerance(atol=0.0, rtol=0.0, rmse_factor=1.0, rmse_floor=0.0)


@dataclass(frozen=True)
class ErrorFigures:
    """How the errors of one output lie, on one input; no rule rests on these.

    `cosine` and `snr_db` (the signal's power over the error's) compare the package with float64.
    `quantiles` are those of |package - eager| at 50, 99 and 99.9 %. `ulp` is the largest of it in
    units in the last place of max(|eager|, RMS(eager)). `top1` and `top5` are the shares of rows in
    which the package's largest element, and its set of the five largest, are eager's; None where
    the output is no table of classes.
    """

    cosine: float
    snr_db: float
    quantiles: tuple[float, ...]
    ulp: float
    top1: float | None = None
    top5: float | None = None


@dataclass(frozen=True)
class Deviation:
    """How far one output of a package lay from eager's on one input.

    `max_rel` is relative to each element, and leaves out those where eager is exactly zero.
    `rmse_package` and `rmse_eager` are root mean square distances from the float64 reference,
    whose own root mean square is `rms`. `required_rtol` is the smallest `rtol` that the elements
    would need at the agreed `atol`, beside the room for eager's own error. Elements that are NaN
    or infinite in eager have to be the same in the package, or what they are in float64; they are
    counted in `non_finite` and
    `mismatched_non_finite`, and left out of the other figures. `special` inputs hold values or
    layouts beyond what was drawn or delivered. `at_step` counts the elements that are others
    than in eager by a step which rounding alone decides, `incomparable` those that rounding alone
    moves by about their own size, of which a comparison says nothing.
    """

    output: int
    case: str
    dtype: str
    elements: int
    max_abs: float
    max_rel: float
    rmse_package: float
    rmse_eager: float
    rms: float
    required_rtol: float
    non_finite: int = 0
    mismatched_non_finite: int = 0
    reasons: tuple[str, ...] = ()
    figures: ErrorFigures | None = added_field(None)
    special: bool = added_field(False)
    at_step: int = added_field(0)
    incomparable: int = added_field(0)

    @property
    def accepted(self) -> bool:
        """Return whether no rule was broken."""
        return not self.reasons


@dataclass(frozen=True)
class ErrorSpread:
    """How the errors of one output lie over all ordinary inputs: elements, counted by size.

    Bin `b` holds what is at least `10**(b / 2)` and below `10**((b + 1) / 2)`; the lowest one,
    `LOWEST_BIN`, also all that is smaller, zero among it, and `HIGHEST_BIN` all that is larger.
    `apart` counts (bin of |eager|, bin of |package - eager|, elements), and `package` and `eager`
    (bin of the distance to float64, elements). `rms` is the root mean square of eager's output.
    Only elements that are finite in all three count.
    """

    output: int
    elements: int
    rms: float
    apart: tuple[tuple[int, ...], ...]
    package: tuple[tuple[int, ...], ...]
    eager: tuple[tuple[int, ...], ...]


LOWEST_BIN, HIGHEST_BIN = -40, 16


def pooled_rmse(parts: Iterable[tuple[int, float]]) -> float | None:
    """Return the RMSE of all parts together, each given by its elements and its RMSE.

    None where there is no element.
    """
    count, total = 0, 0.0
    for elements, rmse in parts:
        count += elements
        # No powers, which raise where they leave the range: errors may be that large.
        total += elements * rmse * rmse
    return math.sqrt(total / count) if count else None


def largest_difference(deviations: Iterable[Deviation]) -> float | None:
    """Return the largest difference to eager on ordinary inputs; None where nothing was compared.

    Empty outputs are alike, and show nothing.
    """
    return max((d.max_abs for d in deviations if not d.special and d.elements), default=None)
