"""Whether a package's result of one operator is right: by eager, float64 and its conditioning.

An element is right where it is within the dtype's own precision of eager or of float64, no further
from float64 than eager is, or where it moves as far when the inputs are changed in their last
place. Where both are infinite or NaN, the order of the operations decided which. Whole numbers,
decisions and steps (rounding, remainders) get none of the last two: they are exact or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from handoff.tasks.conformance.sampling import DTYPES, Sample

# Relative, some units in the last place; and of the output's largest element, for sums that cancel.
_RTOL = {
    torch.float32: 2e-5, torch.float64: 1e-11, torch.float16: 4e-3, torch.bfloat16: 3e-2,
}  # fmt: skip
_RTOL_OF_LARGEST = {
    torch.float32: 4e-7, torch.float64: 1e-13, torch.float16: 1e-3, torch.bfloat16: 8e-3,
}  # fmt: skip
_ATOL = {torch.float32: 1e-6, torch.float64: 1e-12, torch.float16: 1e-6, torch.bfloat16: 1e-6}
_EAGER_FACTOR = 4.0
_PERTURBED_RUNS = 8
_MANTISSA = {
    torch.float32: 2.0**-24, torch.float64: 2.0**-53, torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}  # fmt: skip
# Operators whose results are steps, and their variants behind a dot.
_STEPS = (
    "floor", "ceil", "round", "trunc", "div.floor_rounding", "div.trunc_rounding",
    "remainder", "__rmod__", "fmod", "floor_divide",
    "sign", "sgn", "signbit", "heaviside", "bucketize", "searchsorted", "eq", "ne", "lt", "le",
    "gt", "ge", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "max", "min", "amax", "amin",
    "argmax", "argmin", "aminmax", "sort", "argsort", "msort", "topk", "clamp", "clamp_max",
    "clamp_min", "where", "maximum", "minimum", "fmax", "fmin", "nn.functional.interpolate.nearest",
    "nn.functional.interpolate.nearest-exact", "nn.functional.upsample_nearest",
)  # fmt: skip


def _is_step(operator: str) -> bool:
    return any(operator == name or operator.startswith(f"{name}.") for name in _STEPS)


@dataclass(frozen=True)
class Fault:
    """How a result is wrong: which output, how many of its elements, and the first one of them.

    `got` and `want` are the package's and eager's element at the flat place `first`, or dtype and
    shape where those differ (`first` is -1 then).
    """

    output: int
    wrong: int
    elements: int
    first: int
    got: str
    want: str


def find_fault(
    sample: Sample,
    tensors: tuple[torch.Tensor, ...],
    got: list[torch.Tensor],
    want: list[torch.Tensor],
) -> Fault | None:
    """Return how the package's results differ from eager's beyond what is right; None: they don't.

    `tensors` are the inputs of both.
    """
    if len(got) != len(want):
        return Fault(0, 1, 1, -1, f"{len(got)} results", f"{len(want)} results")
    judge = _Judge(sample, tensors)
    for output, (one, other) in enumerate(zip(got, want, strict=True)):
        if one.dtype is not other.dtype or one.shape != other.shape:
            return Fault(output, 1, 1, -1, _format_type(one), _format_type(other))
        wrong = judge.wrong_elements(output, one, other)
        if wrong.any():
            first = int(wrong.reshape(-1).nonzero()[0])
            return Fault(
                output, int(wrong.sum()), one.numel(), first,
                str(one.reshape(-1)[first].item()), str(other.reshape(-1)[first].item()),
            )  # fmt: skip
    return None


class _Judge:
    """Judges the results of one call; what takes further runs is found out when it is needed."""

    def __init__(self, sample: Sample, tensors: tuple[torch.Tensor, ...]) -> None:
        self._sample = sample
        self._tensors = tensors
        self._is_step = _is_step(sample.pair.operator)

    @cached_property
    def _float64_results(self) -> list[torch.Tensor] | None:
        return _run_in_float64(self._sample, self._tensors)

    @cached_property
    def _sensitivity(self) -> list[torch.Tensor]:
        """How far each element of each result moves with its inputs' last places."""
        if DTYPES[self._sample.pair.dtype] not in _MANTISSA:
            return []
        base = _run_in_float64(self._sample, self._tensors)
        if base is None:
            return []
        spreads = [torch.zeros(one.shape, dtype=torch.float64) for one in base]
        for seed in range(_PERTURBED_RUNS):
            perturbed = _run_in_float64(
                self._sample, self._tensors, torch.Generator().manual_seed(seed)
            )
            if perturbed is None or [m.shape for m in perturbed] != [b.shape for b in base]:
                return []
            for spread, one, other in zip(spreads, base, perturbed, strict=True):
                distance = (_widen(one) - _widen(other)).abs()
                torch.maximum(spread, distance.nan_to_num(0.0, posinf=float("inf")), out=spread)
        return spreads

    def wrong_elements(self, output: int, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        """Return for each element of a result whether it is wrong; dtype and shape are eager's."""
        wrong = ~_is_near(got, want, want.dtype)
        if not self._is_step:
            wrong &= got.isfinite() | want.isfinite()
        exact = self._float64_results if wrong.any() else None
        if exact is not None and exact[output].shape == got.shape:
            wrong &= ~_is_right(got, want, exact[output])
        if wrong.any() and not self._is_step:
            sensitivity = self._sensitivity
            if output < len(sensitivity) and sensitivity[output].shape == got.shape:
                distance = (_widen(got) - _widen(want)).abs()
                wrong &= ~(distance.isfinite() & (distance <= 8.0 * sensitivity[output]))
        return wrong


def _format_type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _is_near(one: torch.Tensor, other: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    same = (one == other) | (one.isnan() & other.isnan())
    kind = {
        torch.complex64: torch.float32, torch.complex128: torch.float64,
        torch.complex32: torch.float16,
    }.get(kind, kind)  # fmt: skip
    if kind not in _RTOL:
        return same
    near, far = _widen(one), _widen(other)
    size = far.abs()
    finite = size.isfinite()
    largest = float(size[finite].max()) if finite.any() else 0.0
    allowed = (
        _ATOL[kind] * min(1.0, largest) + _RTOL[kind] * size + _RTOL_OF_LARGEST[kind] * largest
    )
    return same | (finite & near.abs().isfinite() & ((near - far).abs() <= allowed))


def _is_right(one: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return for each element whether it is float64's, or as near to it as eager's."""
    if not (eager.is_floating_point() or eager.is_complex()):
        return one == exact.to(one.dtype)
    rounded = exact.to(one.dtype)
    near, far, true = _widen(one), _widen(eager), _widen(exact)
    eager_error = (far - true).abs()
    eager_error = torch.where(eager_error.isfinite(), eager_error, 0.0)
    return _is_near(one, rounded, eager.dtype) | (
        (near - true).abs() <= _EAGER_FACTOR * eager_error
    )


def _run_in_float64(
    sample: Sample, tensors: tuple[torch.Tensor, ...], nudges: torch.Generator | None = None
) -> list[torch.Tensor] | None:
    """Return the results in float64; None where the operator has none, or others than there."""
    wide = []
    for tensor in tensors:
        if not tensor.is_floating_point():
            wide.append(tensor.clone())
            continue
        lifted = tensor.to(torch.float64)
        if nudges is not None:
            unit = _MANTISSA[tensor.dtype]
            drawn = torch.rand(tensor.shape, generator=nudges, dtype=torch.float64)
            lifted = lifted * (1.0 + (drawn * 2.0 - 1.0) * 2.0 * unit)
        wide.append(lifted)
    try:
        return sample.rounded_function(wide)
    except Exception:  # noqa: BLE001 - whatever it raises: there is no float64 to judge by
        return None
