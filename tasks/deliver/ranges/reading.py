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
from handoff.tasks.verify.float64 import flat_tensors

_INF = float("inf")
# So many tables are named.
_TOLD = 3
_ROUNDING = 1e-6
_EIGHT_BITS = (torch.uint8, torch.int8)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# `table`: what is looked up with it has that many rows. `mask`: it is told apart from zero alone.
# `compared`: with numbers of the model's. `type`: any number will do. `example`: nothing says.
Source = Literal["table", "mask", "compared", "type", "example"]


@dataclass(frozen=True)
class Reading:
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
    return watch.end(flat_tensors(result))


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's parameters and buffers by name, of any shapes and dtypes."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def read_ranges(
    uses: Uses, inputs: Sequence[torch.Tensor], others: Uses | None = None
) -> tuple[Reading | None, ...]:
    """Return what each input may hold; None for one without whole numbers in it, or ids.

    Inputs may be of any shapes and dtypes. `others` are the uses at other sizes: what differs there
    follows a size, which no range can say.
    """
    return tuple(_read(uses, place, tensor, others) for place, tensor in enumerate(inputs))


def _read(uses: Uses, place: int, tensor: torch.Tensor, others: Uses | None) -> Reading | None:
    is_whole = tensor.dtype in _WHOLE
    if not tensor.numel() or not (is_whole or tensor.is_floating_point()):
        return None
    own = uses.of[place]
    found = _by_tables(uses, place, tensor)
    if not is_whole:
        return found if found is not None and _holds(found, tensor) else None
    if found is None:
        found = _by_kinds(own, tensor)
    if others is not None and found.source != "example":
        again = _by_tables(others, place, tensor) or _by_kinds(others.of[place], tensor)
        if (again.low, again.high) != (found.low, found.high):
            return guess(tensor, "what it may hold depends on the size of an input")
    if not _holds(found, tensor):
        return guess(tensor, f"its values lie outside of {found.low:.0f} to {found.high:.0f}, as "
                      f"read off {found.text}")  # fmt: skip
    return found


def _by_tables(uses: Uses, place: int, tensor: torch.Tensor) -> Reading | None:
    """Return the range that the tables leave, the narrowest of an input's columns."""
    low, high = uses.limits(place)
    limited = (low > -_INF) | (high < _INF)
    # Of a float some columns of which are no ids, the others' range says nothing.
    if not bool(limited.any() if tensor.dtype in _WHOLE else limited.all()):
        return None
    lowest, highest = _ends(tensor.dtype)
    tables = list(uses.of[place].tables)
    told = " and ".join(map(str, tables[:_TOLD]))
    told += f" and {len(tables) - _TOLD} more" if len(tables) > _TOLD else ""

    def between(least: float, most: float, prefix: str) -> Reading:
        # A third of a whole number of thirds isn't quite a whole number.
        first, last = max(least, lowest) - _ROUNDING, min(most, highest) + _ROUNDING
        bounds = _whole(math.ceil, first), _whole(math.floor, last)
        return Reading(*bounds, "table", prefix + told)

    alike = bool((low[limited] == low.max()).all() and (high[limited] == high.min()).all())
    if alike:
        found = between(float(low.max()), float(high.min()), "")
        return found if found.low <= found.high else guess(tensor, f"no value suits {told}")
    narrow = between(float(low.max()), float(high.min()), "the narrowest column's, of ")
    if narrow.low <= narrow.high and _holds(narrow, tensor):
        return replace(narrow, narrowed=True)
    ends = float(low[limited].min()), float(high[limited].max())
    return replace(between(*ends, "the widest column's, of "), widened=True)


def _by_kinds(own: InputUses, tensor: torch.Tensor) -> Reading:
    """Return the range of an input that no table limits."""
    kinds = own.kinds
    lowest, highest = _ends(tensor.dtype)
    kind = str(tensor.dtype).removeprefix("torch.")
    if "unread" in kinds:
        found = guess(tensor, "; ".join(own.unread))
    elif kinds <= {"fitted", "masked", "compared", "summed"} and "fitted" in kinds:
        fitted = ", made to fit " + " and ".join(map(str, own.tables)) if own.tables else ""
        return Reading(lowest, highest, "type", f"any {kind}{fitted}")
    elif not kinds:
        return Reading(lowest, highest, "type", f"any {kind}: its values are not used")
    elif kinds <= {"masked", "compared", "summed"} and kinds != {"summed"}:
        found = _as_mask(own, tensor)
    else:
        found = guess(tensor, "computed with as a number")
    if found.source == "example" and tensor.dtype in _EIGHT_BITS:
        return Reading(lowest, highest, "type", f"any {kind}")
    return found


def _as_mask(own: InputUses, tensor: torch.Tensor) -> Reading:
    least, most = min(own.constants, default=0.0), max(own.constants, default=0.0)
    if least >= 0.0 and most <= 1.0:
        mask = Reading(0.0, 1.0, "mask", "a mask: compared with 0, or multiplied with")
        return mask if _holds(mask, tensor) else guess(tensor, "used like a mask, and holds more")
    # One more than the last number that it is told apart from: that is a case, too.
    high = min(math.floor(most) + 1.0, _ends(tensor.dtype)[1])
    numbers = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    return Reading(min(0.0, math.ceil(least)), high, "compared", f"compared with {numbers}")


def guess(tensor: torch.Tensor, why: str) -> Reading:
    """Return the example's own range; where that is a part of 0 to 1, all of that.

    It may be of any shape with elements, and of any dtype of real numbers.
    """
    low, high = float(tensor.min()), float(tensor.max())
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    return Reading(low, high, "example", why)


def _whole(rounded: Callable[[float], int], value: float) -> float:
    return float(rounded(value)) if math.isfinite(value) else value


def _holds(reading: Reading, tensor: torch.Tensor) -> bool:
    return reading.low <= float(tensor.min()) and float(tensor.max()) <= reading.high


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    if dtype not in _WHOLE:
        return -_INF, _INF
    kind = torch.iinfo(dtype)
    return float(kind.min), float(kind.max)
