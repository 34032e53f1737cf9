"""Models that run at multiples of a number alone: what halves an image, and doubles it again."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.delivery.signature import Dimension

# Strides multiply: 32 for five halvings; patches of 14 and 16.
_LARGEST = 128


def multiple_of(runs: Callable[[int], bool], size: int, limits: Dimension) -> int:
    """Return the smallest number at whose multiples a model runs; 0 for none, or for each size.

    `size` is one at which it runs, and `runs` tells so of another within the limits. Strided
    convolutions may run one below a multiple as well, and what has a smallest size at all above.
    """
    above = size + 1
    if runs(above if above in limits else size - 1):
        return 0
    for number in range(2, min(size, _LARGEST) + 1):
        others = [size + number, size - number, size + 3 * number]
        tried = [other for other in others if other > 0 and other in limits]
        if size % number == 0 and tried and all(map(runs, tried)):
            return number
    return 0


def told_multiple(name: str, runs: Callable[[int], bool], size: int, limits: Dimension) -> str:
    """Return what to do about the dimension `name` where `multiple_of` finds a number, else ''."""
    number = multiple_of(runs, size, limits)
    if not number:
        return ""
    return (
        f"The model runs where {name} is a multiple of {number}, and {name} takes every size from "
        f"{limits.min} to {limits.max}: bring what is joined to one size in forward "
        "(torch.nn.functional.interpolate(a, size=(b.shape[2], b.shape[3]))), or declare "
        f"{name} as fixed, pad what is served to it, and deliver once for each size"
    )
