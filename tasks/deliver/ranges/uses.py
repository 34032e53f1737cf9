"""What a model was seen to do with its inputs' values, and the limits that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from handoff.tasks.deliver.ranges.shadow import Shadow

_INF = float("inf")

# `looked up`: in a table; `fitted`: made to fit a table whatever it is; `masked`: compared with
# zero, or multiplied with what is computed otherwise; `compared`: with other numbers; `summed`;
# `counted with`: as a number like any other; `unread`: in a way that nothing is read off.
Kind = Literal["looked up", "fitted", "masked", "compared", "summed", "counted with", "unread"]


@dataclass(frozen=True)
class Table:
    """What is looked up by number: its name ('' for one without), and how many rows it has."""

    name: str
    rows: int

    def __str__(self) -> str:
        """Return the table for a sentence: `table user_embedding of 50000 rows`."""
        label = f"table {self.name}" if self.name else "a table"
        return f"{label} of {self.rows} rows"


@dataclass
class InputUses:
    """The uses of one input: their kinds, the tables, and the numbers that it is compared with."""

    kinds: set[Kind] = field(default_factory=set)
    tables: dict[Table, None] = field(default_factory=dict)
    constants: list[float] = field(default_factory=list)
    unread: dict[str, None] = field(default_factory=dict)


class Uses:
    """The uses of all inputs, and the limits of each of their elements."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """Begin with nothing used of inputs of any shapes and dtypes."""
        sizes = [tensor.numel() for tensor in inputs]
        self.firsts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._sizes = sizes
        # Element 0 stands for what comes from no input.
        self._low = torch.full((sum(sizes) + 1,), -_INF, dtype=torch.float64)
        self._high = torch.full((sum(sizes) + 1,), _INF, dtype=torch.float64)
        self.by_input = [InputUses() for _ in inputs]

    def note(self, shadow: Shadow, kind: Kind, what: str = "") -> None:
        """Note a use of all the inputs that had a part in a tensor."""
        for index in self._inputs_of(shadow):
            self.by_input[index].kinds.add(kind)
            if kind == "unread":
                self.by_input[index].unread[what] = None

    def look_up(self, shadow: Shadow, table: Table, low: int = 0) -> None:
        """Note that elements are looked up in a table, as `low` to the number of rows more."""
        high = low + table.rows - 1
        under, over = shadow.low < low, shadow.high > high
        unbounded = (shadow.origin > 0) & (under | over)
        for index in self._inputs_of(shadow):
            self.by_input[index].tables[table] = None
        if not bool(unbounded.any()):
            self.note(shadow, "fitted")
        elif bool(shadow.scale[unbounded].isnan().any()):
            self.note(shadow, "unread", f"computed before it is looked up in {table}")
        else:
            self.note(shadow, "looked up")
            self._limit(shadow, under & unbounded, float(low), is_low=True)
            self._limit(shadow, over & unbounded, high + shadow.slack, is_low=False)

    def compare(self, shadow: Shadow, other: Shadow) -> None:
        """Note a comparison; the numbers are those of the input itself."""
        if other.inputs:
            # With another input, or itself: any two numbers can be compared.
            self.note(shadow, "fitted")
        elif not other.is_constant:
            self.note(shadow, "unread", "compared with what is computed")
        else:
            values = ((other.offset - shadow.offset) / shadow.scale).flatten()
            values = values[values.isfinite()]
            self.note(shadow, "compared" if values.numel() else "fitted")
            for index in self._inputs_of(shadow) if values.numel() else ():
                self.by_input[index].constants += [float(values.min()), float(values.max())]

    def limits(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lowest and the highest value that each element of an input may have.

        Both are float64 `[n]`, in the order of the flattened input.
        """
        begin = self.firsts[index] + 1
        part = slice(begin, begin + self._sizes[index])
        return self._low[part], self._high[part]

    def _inputs_of(self, shadow: Shadow) -> list[int]:
        """Return the places of the inputs in a tensor: of a part of several, of that part's."""
        from_inputs = shadow.origin > 0
        if bool(shadow.scale[from_inputs].isnan().any()):
            return sorted(shadow.inputs)
        elements = shadow.origin[from_inputs].long().unique() - 1
        ends = torch.tensor(self.firsts)
        return sorted(set((torch.bucketize(elements, ends, right=True) - 1).tolist()))

    def _limit(
        self, shadow: Shadow, where: torch.Tensor, bound: float | torch.Tensor, *, is_low: bool
    ) -> None:
        edge = (bound - shadow.offset) / shadow.scale
        for rising in (True, False):
            picked = where & ((shadow.scale > 0) if rising else (shadow.scale < 0))
            elements, edges = shadow.origin[picked].long(), edge[picked]
            if rising == is_low:
                self._low.scatter_reduce_(0, elements, edges, "amax")
            else:
                self._high.scatter_reduce_(0, elements, edges, "amin")
