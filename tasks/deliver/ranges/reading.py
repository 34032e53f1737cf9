"""Reads the range of each input off a run of the model, or says why it can't be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from handoff.tasks.deliver.ranges.uses import InputUses, Uses
from handoff.tasks.deliver.ranges.watch import ValueWatch
from handoff.tasks.verify.float64 import flatten_tensors

_INF = float("inf")
# So many tables are named.
_TABLES_AT_MOST = 3
_ROUNDING = 1e-6
_EIGHT_BITS = (torch.uint8, torch.int8)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# `table`: what is looked up with it has that many rows. `mask`: it is compared with zero alone.
# `compared`: with numbers of the model's. `type`: any number will do. `example`: nothing says.
Source = Literal["table", "mask", "compared", "type", "example"]


@dataclass(frozen=True)
class RangeReading:
    """What one input may hold, both ends included, where that was read off, and in words.

    Where its columns could hold different numbers, the narrowest counts (`narrowed`), or, where the
    example holds more than that, the widest (`widened`).
    """

    low: float
    high: float
    source: Source
    text: str
    narrowed: bool = False
    widened: bool = False

    def end(self, tensor: torch.Tensor, *, is_high: bool) -> torch.Tensor:
        """Return a tensor like this one that holds one end of the range throughout.

        It has the same shape and dtype, of floating-point or whole numbers.
        """
        if tensor.is_floating_point():
            return torch.full_like(tensor, self.high if is_high else self.low)
        kind = torch.iinfo(tensor.dtype)
        return torch.full_like(tensor, min(max(int(self.high if is_high else self.low), kind.min),
                                           kind.max))  # fmt: skip


def watch_values(
    run: Callable[..., object], inputs: Sequence[torch.Tensor], state: Mapping[str, torch.Tensor]
) -> Uses:
    """Run a model on copies of `inputs`; return what it does with their values.

    `state` are its parameters and buffers by name. Both may be of any shapes and dtypes. Raises
    what the model raises.
    """
    copies = [tensor.detach().clone() for tensor in inputs]
    names = {
        tensor.untyped_storage().data_ptr(): name.removesuffix(".weight")
        for name, tensor in state.items()
        if tensor.numel()
    }
    watch = ValueWatch(copies, names)
    with torch.no_grad(), watch:
        result = run(*copies)
    return watch.end(flatten_tensors(result))


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's parameters and buffers by name, of any shapes and dtypes."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def read_ranges(
    uses: Uses, inputs: Sequence[torch.Tensor], others: Uses | None = None
) -> tuple[RangeReading | None, ...]:
    """Return what each input may hold; None for one without whole numbers in it, or ids.

    Inputs may be of any shapes and dtypes. `others` are the uses at other sizes: what differs there
    follows a size, which no range can say.
    """
    return tuple(_read_range(uses, index, tensor, others) for index, tensor in enumerate(inputs))


def _read_range(
    uses: Uses, index: int, tensor: torch.Tensor, others: Uses | None
) -> RangeReading | None:
    is_integer = tensor.dtype in _INTEGERS
    if not tensor.numel() or not (is_integer or tensor.is_floating_point()):
        return None
    input_uses = uses.by_input[index]
    reading = _range_by_tables(uses, index, tensor)
    if not is_integer:
        return reading if reading is not None and _contains(reading, tensor) else None
    if reading is None:
        reading = _range_by_uses(input_uses, tensor)
    if others is not None and reading.source != "example":
        other = _range_by_tables(others, index, tensor) or _range_by_uses(
            others.by_input[index], tensor
        )
        if (other.low, other.high) != (reading.low, reading.high):
            return guess_range(tensor, "what it may hold depends on the size of an input")
    if not _contains(reading, tensor):
        limits = f"{reading.low:.0f} to {reading.high:.0f}"
        return guess_range(
            tensor, f"its values lie outside of {limits}, as read off {reading.text}"
        )
    return reading


def _range_by_tables(uses: Uses, index: int, tensor: torch.Tensor) -> RangeReading | None:
    """Return the range that the tables leave, the narrowest of an input's columns."""
    low, high = uses.limits(index)
    limited = (low > -_INF) | (high < _INF)
    # Of a float some columns of which are no ids, the others' range says nothing.
    if not bool(limited.any() if tensor.dtype in _INTEGERS else limited.all()):
        return None
    lowest, highest = _dtype_limits(tensor.dtype)
    tables = list(uses.by_input[index].tables)
    names = " and ".join(map(str, tables[:_TABLES_AT_MOST]))
    names += f" and {len(tables) - _TABLES_AT_MOST} more" if len(tables) > _TABLES_AT_MOST else ""

    def between(least: float, most: float, prefix: str) -> RangeReading:
        # A third of a whole number of thirds isn't quite a whole number.
        first, last = max(least, lowest) - _ROUNDING, min(most, highest) + _ROUNDING
        bounds = _round_finite(math.ceil, first), _round_finite(math.floor, last)
        return RangeReading(*bounds, "table", prefix + names)

    are_alike = bool((low[limited] == low.max()).all() and (high[limited] == high.min()).all())
    if are_alike:
        reading = between(float(low.max()), float(high.min()), "")
        if reading.low > reading.high:
            return guess_range(tensor, f"no value suits {names}")
        return reading
    narrow = between(float(low.max()), float(high.min()), "the narrowest column's, of ")
    if narrow.low <= narrow.high and _contains(narrow, tensor):
        return replace(narrow, narrowed=True)
    ends = float(low[limited].min()), float(high[limited].max())
    return replace(between(*ends, "the widest column's, of "), widened=True)


def _range_by_uses(input_uses: InputUses, tensor: torch.Tensor) -> RangeReading:
    """Return the range of an input that no table limits."""
    kinds = input_uses.kinds
    lowest, highest = _dtype_limits(tensor.dtype)
    kind = str(tensor.dtype).removeprefix("torch.")
    if "unread" in kinds:
        reading = guess_range(tensor, "; ".join(input_uses.unread))
    elif kinds <= {"fitted", "masked", "compared", "summed"} and "fitted" in kinds:
        tables = " and ".join(map(str, input_uses.tables))
        suffix = f", made to fit {tables}" if tables else ""
        return RangeReading(lowest, highest, "type", f"any {kind}{suffix}")
    elif not kinds:
        return RangeReading(lowest, highest, "type", f"any {kind}: its values are not used")
    elif kinds <= {"masked", "compared", "summed"} and kinds != {"summed"}:
        reading = _range_of_mask(input_uses, tensor)
    else:
        reading = guess_range(tensor, "computed with as a number")
    if reading.source == "example" and tensor.dtype in _EIGHT_BITS:
        return RangeReading(lowest, highest, "type", f"any {kind}")
    return reading


def _range_of_mask(input_uses: InputUses, tensor: torch.Tensor) -> RangeReading:
    least, most = min(input_uses.constants, default=0.0), max(input_uses.constants, default=0.0)
    if least >= 0.0 and most <= 1.0:
        mask = RangeReading(0.0, 1.0, "mask", "a mask: compared with 0, or multiplied with")
        if not _contains(mask, tensor):
            return guess_range(tensor, "used like a mask, and holds more")
        return mask
    # One more than the last number that it is compared with: that is a case, too.
    high = min(math.floor(most) + 1.0, _dtype_limits(tensor.dtype)[1])
    numbers = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    return RangeReading(min(0.0, math.ceil(least)), high, "compared", f"compared with {numbers}")


def guess_range(tensor: torch.Tensor, why: str) -> RangeReading:
    """Return the example's own range; where that is a part of 0 to 1, all of that.

    It may be of any shape with elements, and of any dtype of real numbers.
    """
    low, high = float(tensor.min()), float(tensor.max())
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    return RangeReading(low, high, "example", why)


def _round_finite(rounding: Callable[[float], int], value: float) -> float:
    return float(rounding(value)) if math.isfinite(value) else value


def _contains(reading: RangeReading, tensor: torch.Tensor) -> bool:
    return reading.low <= float(tensor.min()) and float(tensor.max()) <= reading.high


def _dtype_limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype not in _INTEGERS:
        return -_INF, _INF
    kind = torch.iinfo(dtype)
    return float(kind.min), float(kind.max)
