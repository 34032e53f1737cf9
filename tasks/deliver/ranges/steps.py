"""Arithmetic with what is followed: what each ATen operator makes of its arguments' shadows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from handoff.tasks.deliver.ranges import shadow as shadows
from handoff.tasks.deliver.ranges.shadow import Shadow
from handoff.tasks.deliver.ranges.uses import Kind

_INF = float("inf")
# What is added to a score so that nothing is left of it is larger than any score.
_SHUTS_OUT = 1e3


@dataclass(frozen=True)
class Called:
    """A call of an operator: arguments by position and those by name alone, and the result."""

    name: str
    args: Sequence[Any]
    named: Mapping[str, Any]
    result: Any


class Watch(Protocol):
    """What a step knows of the tensors, and where it notes what was seen."""

    def shadow_of(self, value: object) -> Shadow:
        """Return what is known of an argument."""

    def note(self, shadow: Shadow, kind: Kind, what: str = "") -> None:
        """Note a use of the inputs in a shadow."""

    def keep(self, shadow: Shadow, result: torch.Tensor) -> None:
        """Follow a result, to whose shape the shadow broadcasts, from here on; bool isn't."""


@dataclass(frozen=True)
class _Pair:
    """The two arguments of an operator that works element by element."""

    watch: Watch
    call: Called
    left: Shadow
    right: Shadow
    both: tuple[tuple[Shadow, Shadow], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "both", ((self.left, self.right), (self.right, self.left)))

    @property
    def is_float(self) -> bool:
        return bool(self.call.result.is_floating_point())

    @property
    def divisor(self) -> float | None:
        """The second argument where it is one known number."""
        by = self.right
        return float(by.offset) if by.is_constant and by.offset.numel() == 1 else None

    def mixed(self) -> Shadow:
        return shadows.mixed((self.left, self.right), self.call.result.shape)


def _pair(watch: Watch, call: Called) -> _Pair:
    return _Pair(watch, call, watch.shadow_of(call.args[0]), watch.shadow_of(call.args[1]))


def _cast(watch: Watch, call: Called) -> Shadow | None:
    known = watch.shadow_of(call.args[0])
    if call.result.dtype is torch.bool:
        watch.note(known, "masked")
        return None
    return known


def _add(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    return _sum(pair, pair.left, shadows.scaled(pair.right, float(call.named.get("alpha", 1))))


def _sub(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    return _sum(pair, pair.left, shadows.scaled(pair.right, -float(call.named.get("alpha", 1))))


def _rsub(watch: Watch, call: Called) -> Shadow | None:
    # Its factor of the first argument is given by position.
    pair = _pair(watch, call)
    alpha = float(call.args[2]) if len(call.args) > 2 else 1.0
    return _sum(pair, pair.right, shadows.scaled(pair.left, -alpha))


def _sum(pair: _Pair, left: Shadow, right: Shadow) -> Shadow | None:
    for own, other in ((left, right), (right, left)):
        if own.inputs and not (other.inputs or other.is_constant) and pair.is_float:
            # A mask as numbers: as low as possible is added to a score where nothing is to stay.
            shuts_out = bool((own.scale.abs() >= _SHUTS_OUT).all())
            pair.watch.note(own, "masked" if shuts_out else "counted with")
            return None
    return shadows.added(left, right)


def _mul(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    for own, other in pair.both:
        if own.inputs and other.is_constant and (other.offset.numel() == 1 or not pair.is_float):
            return shadows.scaled(own, other.offset)
    if not pair.is_float:
        return pair.mixed()
    for own, _ in pair.both:
        watch.note(own, "masked")
    return None


def _div(watch: Watch, call: Called) -> Shadow | None:
    return _quotient(_pair(watch, call), call.named.get("rounding_mode"))


def _floor_divide(watch: Watch, call: Called) -> Shadow | None:
    return _quotient(_pair(watch, call), "floor")


def _quotient(pair: _Pair, rounding: object) -> Shadow | None:
    divisor = pair.divisor
    if divisor and pair.left.inputs:
        if rounding is None:
            return shadows.scaled(pair.left, 1.0 / divisor)
        if divisor >= 1 and divisor.is_integer():
            return shadows.floored(pair.left, divisor)
    if not pair.is_float:
        return pair.mixed()
    pair.watch.note(pair.left, "counted with")
    # A sum over a mask divides what was summed with it.
    pair.watch.note(pair.right, "summed")
    return None


def _remainder(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    by = pair.right
    if not (by.is_constant and bool((by.offset >= 1).all())):
        return pair.mixed()
    if pair.divisor is not None:
        return shadows.wrapped(pair.left, pair.divisor)
    # Each column by its own number of buckets.
    return pair.mixed().between(0.0, by.offset - 1.0)


def _fmod(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    if pair.divisor is None or pair.divisor < 1:
        return pair.mixed()
    top = pair.divisor - 1.0
    return pair.mixed().between(0.0 if bool((pair.left.low >= 0).all()) else -top, top)


def _bits(watch: Watch, call: Called) -> Shadow | None:
    pair = _pair(watch, call)
    if pair.divisor is None or pair.divisor < 0:
        return pair.mixed()
    return pair.mixed().between(0.0, pair.divisor)


def _lost(watch: Watch, call: Called) -> Shadow | None:
    known = [watch.shadow_of(arg) for arg in call.args if isinstance(arg, torch.Tensor)]
    return shadows.mixed(known, call.result.shape)


def _clamp(watch: Watch, call: Called) -> Shadow | None:
    return _clamped(watch, call, *[*call.args[1:3], None, None][:2])


def _clamp_min(watch: Watch, call: Called) -> Shadow | None:
    return _clamped(watch, call, call.args[1], None)


def _clamp_max(watch: Watch, call: Called) -> Shadow | None:
    return _clamped(watch, call, None, call.args[1])


def _clamped(watch: Watch, call: Called, low: object, high: object) -> Shadow | None:
    known = watch.shadow_of(call.args[0])
    ends = [watch.shadow_of(end) for end in (low, high) if end is not None]
    if not known.inputs or any(not end.is_constant or end.offset.numel() > 1 for end in ends):
        return shadows.mixed((known, *ends), call.result.shape)
    least = -_INF if low is None else float(ends[0].offset)
    return known.confined(least, _INF if high is None else float(ends[-1].offset))


def _where(watch: Watch, call: Called) -> Shadow | None:
    condition, left, right = call.args[:3]
    return shadows.chosen(condition, watch.shadow_of(left), watch.shadow_of(right))


def _masked_fill(watch: Watch, call: Called) -> Shadow | None:
    tensor, mask, value = call.args[:3]
    return shadows.chosen(mask, watch.shadow_of(value), watch.shadow_of(tensor))


def _pad(watch: Watch, call: Called) -> Shadow | None:
    known = watch.shadow_of(call.args[0])
    value = float(call.args[2] or 0) if len(call.args) > 2 else 0.0
    origin, scale, offset, slack, low, high = (
        torch.constant_pad_nd(part, call.args[1], end)
        for part, end in zip(known.parts, (0.0, 0.0, value, 0.0, value, value), strict=True)
    )
    return Shadow(origin, scale, offset, slack, low, high, known.inputs)


def _negate(watch: Watch, call: Called) -> Shadow | None:
    return shadows.scaled(watch.shadow_of(call.args[0]), -1.0)


def _copy(watch: Watch, call: Called) -> Shadow | None:
    known, target = watch.shadow_of(call.args[1]), call.result
    if target.numel() * target.element_size() != target.untyped_storage().nbytes():
        watch.note(known, "unread", "copied into a part of another tensor")
        return None
    (found,) = shadows.moved((known,), lambda parts: parts[0].expand(target.shape))
    return found


def _sort(watch: Watch, call: Called) -> Shadow | None:
    values, places = call.result
    axes = [arg for arg in call.args[1:] if type(arg) is int] or [-1]
    if values.dim():
        known = watch.shadow_of(call.args[0])
        (found,) = shadows.moved((known,), lambda parts: parts[0].gather(axes[0], places))
        watch.keep(found, values)
    return None


def _read(watch: Watch, call: Called) -> Shadow | None:
    watch.note(watch.shadow_of(call.args[0]), "unread", "read as a Python number")
    return None


def _summed(watch: Watch, call: Called) -> Shadow | None:
    watch.note(watch.shadow_of(call.args[0]), "summed")
    return None


def _told_apart(watch: Watch, call: Called) -> Shadow | None:
    for arg in call.args:
        if isinstance(arg, torch.Tensor):
            watch.note(watch.shadow_of(arg), "masked")
    return None


def _in_place(steps: Mapping[str, Step]) -> dict[str, Step]:
    return {name + ending: step for name, step in steps.items() for ending in ("", "_")}


Step = Callable[[Watch, Called], Shadow | None]

STEPS: Mapping[str, Step] = {
    **_in_place({
        "add": _add, "sub": _sub, "mul": _mul, "div": _div, "floor_divide": _floor_divide,
        "remainder": _remainder, "fmod": _fmod, "bitwise_and": _bits, "clamp": _clamp,
        "clamp_min": _clamp_min, "clamp_max": _clamp_max, "masked_fill": _masked_fill,
        "neg": _negate, "bitwise_xor": _lost, "bitwise_or": _lost, "bitwise_not": _lost,
        "bitwise_right_shift": _lost, "bitwise_left_shift": _lost, "pow": _lost, "square": _lost,
        "abs": _lost, "sign": _lost, "cumsum": _summed, "logical_not": _told_apart,
        "logical_and": _told_apart, "logical_or": _told_apart, "logical_xor": _told_apart,
    }),
    "_to_copy": _cast, "rsub": _rsub, "__and__": _bits, "__xor__": _lost, "__or__": _lost,
    "__rshift__": _lost, "__lshift__": _lost, "maximum": _clamp_min, "minimum": _clamp_max,
    "where": _where, "constant_pad_nd": _pad, "copy_": _copy, "sort": _sort,
    "_local_scalar_dense": _read, "sum": _summed, "mean": _summed, "count_nonzero": _summed,
    "nansum": _summed, "any": _told_apart, "all": _told_apart,
}  # fmt: skip
