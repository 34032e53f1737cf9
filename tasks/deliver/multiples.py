"""Models that run at multiples of a number alone: what halves an image, and doubles it again."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.delivery.signature import Dimension

# Strides multiply: 32 for five halvings; patches of 14 and 16.
_LARGEST = 128


def find_multiple(runs: Callable[[int], bool], size: int, limits: Dimension) -> int:
    """Return the smallest number at whose multiples a model runs; 0 for none, or for each size.

    `size` is one at which it runs, and `runs` says so of another within the limits. Strided
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


def format_dimension(limits: Dimension) -> str:
    """Return a range as `deliver` takes it: `(16, 512, 16)`."""
    step = (limits.multiple_of,) if limits.multiple_of > 1 else ()
    return str((limits.min, limits.max, *step))


def suggest_multiple(name: str, runs: Callable[[int], bool], size: int, limits: Dimension) -> str:
    """Return what to do about the dimension `name` where `find_multiple` finds one, else ''."""
    number = find_multiple(runs, size, limits)
    multiples = limits.restrict_to_multiples(number) if number else None
    if multiples is None:
        return ""
    return (
        f"The model runs where {name} is a multiple of {number}: declare that, dimensions="
        f"{{'{name}': {format_dimension(multiples)}}}, and pad what is served to the next one"
    )
