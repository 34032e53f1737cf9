"""Figures beside the rules: how one output's errors lie, for people and pages to look at."""

from __future__ import annotations

import math

import torch

from handoff.artifacts.recipe.tolerance import Figures
from handoff.tasks.verify.elements import finite_in_all

_QUANTILES = (0.5, 0.99, 0.999)
_TOP = 5


def measure(package: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor) -> Figures | None:
    """Return the figures of a floating-point output; None where there is nothing to measure.

    Only elements that are finite in all three count.
    """
    if not eager.is_floating_point():
        return None
    got, want, exact = finite_in_all(package, eager, float64)
    if not got.numel():
        return None
    top1, top5 = None, None
    if got.numel() == package.numel():
        top1, top5 = _top_agreement(got.view(package.shape), want.view(package.shape))
    distance = (got - want).abs()
    return Figures(
        cosine=_cosine(got, exact),
        snr_db=_snr(got - exact, exact),
        quantiles=_quantiles(distance),
        ulp=_ulp(distance, want, eager.dtype),
        top1=top1,
        top5=top5,
    )


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    lengths = float(left.norm()) * float(right.norm())
    if lengths == 0.0:
        return 1.0 if torch.equal(left, right) else 0.0
    return min(1.0, float(torch.dot(left.flatten(), right.flatten())) / lengths)


def _snr(noise: torch.Tensor, signal: torch.Tensor) -> float:
    power, disturbance = float(signal.square().sum()), float(noise.square().sum())
    if disturbance == 0.0:
        return math.inf
    return 10.0 * math.log10(power / disturbance) if power else -math.inf


def _quantiles(distance: torch.Tensor) -> tuple[float, ...]:
    # By rank, because torch.quantile takes no more than 16 million elements.
    count = distance.numel()
    ranks = [min(count, max(1, math.ceil(q * count))) for q in _QUANTILES]
    return tuple(float(distance.kthvalue(rank).values) for rank in ranks)


def _ulp(distance: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    kind = torch.finfo(dtype)
    # An element near zero carries the rounding of terms of the output's own size.
    size = want.abs().clamp_min(float(want.square().mean().sqrt())).clamp_min(kind.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * kind.eps
    return float((distance / unit).max())


def _top_agreement(got: torch.Tensor, want: torch.Tensor) -> tuple[float | None, float | None]:
    """Return in what share of the rows the first class, and the set of five, are the same."""
    if want.dim() != 2 or want.shape[1] < 2 or not want.shape[0]:
        return None, None
    first = float((got.argmax(1) == want.argmax(1)).double().mean())
    if want.shape[1] <= _TOP:
        return first, None
    sets = [values.topk(_TOP, dim=1).indices.sort(dim=1).values for values in (got, want)]
    return first, float((sets[0] == sets[1]).all(dim=1).double().mean())
