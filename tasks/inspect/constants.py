"""Tells numbers that were drawn from numbers that somebody wrote or computed."""

from __future__ import annotations

import torch

_MANY = 4096
_FEW = 8


def looks_random(tensor: torch.Tensor) -> bool:
    """Tell whether the values of a tensor look drawn at random.

    Drawn values hardly repeat, have no short decimal form, and turn up and down: of independent
    values two thirds of the inner ones are turning points (Bienaymé's test), of a table that was
    computed few, of an alternating one nearly all. One value alone says nothing.
    """
    if tensor.numel() < 2 or tensor.is_complex() or tensor.dtype is torch.bool:
        return False
    values = tensor.detach().reshape(-1)[:_MANY].double()
    if not bool(values.isfinite().all()):
        return False
    if not tensor.is_floating_point():
        return values.numel() >= _FEW and _turns_like_noise(values)
    distinct = values.unique().numel() / values.numel()
    # Four digits write any half-precision number.
    precise = tensor.dtype.itemsize >= 4
    written = [v for v in values.tolist() if precise and _is_short(v, tensor.dtype)]
    if distinct < (0.98 if precise else 0.9) or len(written) > 0.1 * values.numel():
        return False
    return _turns_like_noise(values)


def _is_short(value: float, dtype: torch.dtype) -> bool:
    """Tell whether four digits write the value: what a person typed, or a simple fraction."""
    short = torch.tensor(float(f"{value:.4g}"), dtype=torch.float64).to(dtype).double().item()
    return short == value


def _turns_like_noise(values: torch.Tensor) -> bool:
    steps = values.diff()
    if values.numel() < _FEW:
        return (bool((steps > 0).any()) and bool((steps < 0).any())) or values.numel() == 2
    turning = ((steps[1:] * steps[:-1]) < 0).double().mean().item()
    return 0.4 <= turning <= 0.92
