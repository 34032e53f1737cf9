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
_MASKING = 1e3


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator: arguments by position and those by name alone, and the result."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any


class Watch(Protocol):
    """What a step knows of the tensors, and where it notes what was seen."""

    def shadow_of(self, value: object) -> Shadow:
        """Return what is known of an argument."""

    def note(self, shadow: Shadow, kind: Kind, what: str = "") -> None:
        """Note a use of the inputs in a shadow."""

    def follow_result(self, shadow: Shadow, result: torch.Tensor) -> None:
        """Follow a result, to whose shape the shadow broadcasts, from here on; bool isn't."""


@dataclass(frozen=True)
class _BinaryOperands:
    """The two arguments of an operator that works element by element."""

    watch: Watch
    call: OperatorCall
    left: Shadow
    right: Shadow
    orders: tuple[tuple[Shadow, Shadow], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", ((self.left, self.right), (self.right, self.left)))

    @property
    def is_float(self) -> bool:
        return bool(self.call.result.is_floating_point())

    @property
    def divisor(self) -> float | None:
        """The second argument where it is one known number."""
        operand = self.right
        is_number = operand.is_constant and operand.offset.numel() == 1
        return float(operand.offset) if is_number else None

    def combine(self) -> Shadow:
        return shadows.combine((self.left, self.right), self.call.result.shape)


def _read_operands(watch: Watch, call: OperatorCall) -> _BinaryOperands:
    return _BinaryOperands(
        watch, call, watch.shadow_of(call.args[0]), watch.shadow_of(call.args[1])
    )


def _cast(watch: Watch, call: OperatorCall) -> Shadow | None:
    shadow = watch.shadow_of(call.args[0])
    if call.result.dtype is torch.bool:
        watch.note(shadow, "masked")
        return None
    return shadow


def _add(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    alpha = float(call.kwargs.get("alpha", 1))
    return _sum(operands, operands.left, shadows.multiply(operands.right, alpha))


def _sub(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    alpha = float(call.kwargs.get("alpha", 1))
    return _sum(operands, operands.left, shadows.multiply(operands.right, -alpha))


def _rsub(watch: Watch, call: OperatorCall) -> Shadow | None:
    # Its factor of the first argument is given by position.
    operands = _read_operands(watch, call)
    alpha = float(call.args[2]) if len(call.args) > 2 else 1.0
    return _sum(operands, operands.right, shadows.multiply(operands.left, -alpha))


def _sum(operands: _BinaryOperands, left: Shadow, right: Shadow) -> Shadow | None:
    for shadow, other in ((left, right), (right, left)):
        if shadow.inputs and not (other.inputs or other.is_constant) and operands.is_float:
            # A mask as numbers: as low as possible is added to a score where nothing is to stay.
            is_masking = bool((shadow.scale.abs() >= _MASKING).all())
            operands.watch.note(shadow, "masked" if is_masking else "counted with")
            return None
    return shadows.add(left, right)


def _mul(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    for shadow, other in operands.orders:
        is_factor = other.is_constant and (other.offset.numel() == 1 or not operands.is_float)
        if shadow.inputs and is_factor:
            return shadows.multiply(shadow, other.offset)
    if not operands.is_float:
        return operands.combine()
    for shadow, _ in operands.orders:
        watch.note(shadow, "masked")
    return None


def _div(watch: Watch, call: OperatorCall) -> Shadow | None:
    return _quotient(_read_operands(watch, call), call.kwargs.get("rounding_mode"))


def _floor_divide(watch: Watch, call: OperatorCall) -> Shadow | None:
    return _quotient(_read_operands(watch, call), "floor")


def _quotient(operands: _BinaryOperands, rounding: object) -> Shadow | None:
    divisor = operands.divisor
    if divisor and operands.left.inputs:
        if rounding is None:
            return shadows.multiply(operands.left, 1.0 / divisor)
        if divisor >= 1 and divisor.is_integer():
            return shadows.floor_divide(operands.left, divisor)
    if not operands.is_float:
        return operands.combine()
    operands.watch.note(operands.left, "counted with")
    # A sum over a mask divides what was summed with it.
    operands.watch.note(operands.right, "summed")
    return None


def _remainder(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    modulus = operands.right
    if not (modulus.is_constant and bool((modulus.offset >= 1).all())):
        return operands.combine()
    if operands.divisor is not None:
        return shadows.remainder(operands.left, operands.divisor)
    # Each column by its own number of buckets.
    return operands.combine().bounded(0.0, modulus.offset - 1.0)


def _fmod(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    if operands.divisor is None or operands.divisor < 1:
        return operands.combine()
    largest = operands.divisor - 1.0
    smallest = 0.0 if bool((operands.left.low >= 0).all()) else -largest
    return operands.combine().bounded(smallest, largest)


def _bitwise_and(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = _read_operands(watch, call)
    if operands.divisor is None or operands.divisor < 0:
        return operands.combine()
    return operands.combine().bounded(0.0, operands.divisor)


def _combine(watch: Watch, call: OperatorCall) -> Shadow | None:
    operands = [watch.shadow_of(arg) for arg in call.args if isinstance(arg, torch.Tensor)]
    return shadows.combine(operands, call.result.shape)


def _clamp(watch: Watch, call: OperatorCall) -> Shadow | None:
    return _clamp_between(watch, call, *[*call.args[1:3], None, None][:2])


def _clamp_min(watch: Watch, call: OperatorCall) -> Shadow | None:
    return _clamp_between(watch, call, call.args[1], None)


def _clamp_max(watch: Watch, call: OperatorCall) -> Shadow | None:
    return _clamp_between(watch, call, None, call.args[1])


def _clamp_between(watch: Watch, call: OperatorCall, low: object, high: object) -> Shadow | None:
    shadow = watch.shadow_of(call.args[0])
    ends = [watch.shadow_of(end) for end in (low, high) if end is not None]
    if not shadow.inputs or any(not end.is_constant or end.offset.numel() > 1 for end in ends):
        return shadows.combine((shadow, *ends), call.result.shape)
    least = -_INF if low is None else float(ends[0].offset)
    return shadow.clamped(least, _INF if high is None else float(ends[-1].offset))


def _where(watch: Watch, call: OperatorCall) -> Shadow | None:
    condition, left, right = call.args[:3]
    return shadows.where(condition, watch.shadow_of(left), watch.shadow_of(right))


def _masked_fill(watch: Watch, call: OperatorCall) -> Shadow | None:
    tensor, mask, value = call.args[:3]
    return shadows.where(mask, watch.shadow_of(value), watch.shadow_of(tensor))


def _pad(watch: Watch, call: OperatorCall) -> Shadow | None:
    shadow = watch.shadow_of(call.args[0])
    value = float(call.args[2] or 0) if len(call.args) > 2 else 0.0
    origin, scale, offset, slack, low, high = (
        torch.constant_pad_nd(part, call.args[1], end)
        for part, end in zip(shadow.parts, (0.0, 0.0, value, 0.0, value, value), strict=True)
    )
    return Shadow(origin, scale, offset, slack, low, high, shadow.inputs)


def _negate(watch: Watch, call: OperatorCall) -> Shadow | None:
    return shadows.multiply(watch.shadow_of(call.args[0]), -1.0)


def _copy(watch: Watch, call: OperatorCall) -> Shadow | None:
    shadow, target = watch.shadow_of(call.args[1]), call.result
    if target.numel() * target.element_size() != target.untyped_storage().nbytes():
        watch.note(shadow, "unread", "copied into a part of another tensor")
        return None
    (result,) = shadows.transform((shadow,), lambda parts: parts[0].expand(target.shape))
    return result


def _sort(watch: Watch, call: OperatorCall) -> Shadow | None:
    values, indices = call.result
    axes = [arg for arg in call.args[1:] if type(arg) is int] or [-1]
    if values.dim():
        shadow = watch.shadow_of(call.args[0])
        (result,) = shadows.transform((shadow,), lambda parts: parts[0].gather(axes[0], indices))
        watch.follow_result(result, values)
    return None


def _read_number(watch: Watch, call: OperatorCall) -> Shadow | None:
    watch.note(watch.shadow_of(call.args[0]), "unread", "read as a Python number")
    return None


def _note_sum(watch: Watch, call: OperatorCall) -> Shadow | None:
    watch.note(watch.shadow_of(call.args[0]), "summed")
    return None


def _note_mask(watch: Watch, call: OperatorCall) -> Shadow | None:
    for arg in call.args:
        if isinstance(arg, torch.Tensor):
            watch.note(watch.shadow_of(arg), "masked")
    return None


def _with_in_place(steps: Mapping[str, Step]) -> dict[str, Step]:
    return {name + ending: step for name, step in steps.items() for ending in ("", "_")}


Step = Callable[[Watch, OperatorCall], Shadow | None]

STEPS: Mapping[str, Step] = {
    **_with_in_place({
        "add": _add, "sub": _sub, "mul": _mul, "div": _div, "floor_divide": _floor_divide,
        "remainder": _remainder, "fmod": _fmod, "bitwise_and": _bitwise_and, "clamp": _clamp,
        "clamp_min": _clamp_min, "clamp_max": _clamp_max, "masked_fill": _masked_fill,
        "neg": _negate, "bitwise_xor": _combine, "bitwise_or": _combine, "bitwise_not": _combine,
        "bitwise_right_shift": _combine, "bitwise_left_shift": _combine, "pow": _combine,
        "square": _combine, "abs": _combine, "sign": _combine, "cumsum": _note_sum,
        "logical_not": _note_mask, "logical_and": _note_mask, "logical_or": _note_mask,
        "logical_xor": _note_mask,
    }),
    "_to_copy": _cast, "rsub": _rsub, "__and__": _bitwise_and, "__xor__": _combine,
    "__or__": _combine, "__rshift__": _combine, "__lshift__": _combine, "maximum": _clamp_min,
    "minimum": _clamp_max, "where": _where, "constant_pad_nd": _pad, "copy_": _copy, "sort": _sort,
    "_local_scalar_dense": _read_number, "sum": _note_sum, "mean": _note_sum,
    "count_nonzero": _note_sum, "nansum": _note_sum, "any": _note_mask, "all": _note_mask,
}  # fmt: skip
