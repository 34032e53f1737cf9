"""What a toolchain's table knows to be wrong about the operators of a graph; without torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from artifacts.conformance import Conformance, PlainTensor, Row
from artifacts.evidence import Finding

_SHOWN_VALUES = 6

# What a graph does beside computing: such calls prove nothing about another graph.
_BYSTANDERS = ("aten._assert_scalar", "aten.sym_size", "aten._assert_async", "aten.alias")


@dataclass(frozen=True)
class Known:
    """One row of a table that concerns a graph: it calls all that the row's wrong graph calls.

    `calls` are those operators, with their dtypes.
    """

    row: Row
    calls: tuple[str, ...]

    @property
    def inputs(self) -> tuple[PlainTensor, ...]:
        """The values that show it, in the order of the operator's tensors; empty if not kept."""
        return self.row.showing.inputs if self.row.showing else ()

    @property
    def questions(self) -> tuple[str, ...]:
        """What has to be asked to see it: `multiples`, `one-sided, negative`."""
        return self.row.questions


def known_wrong(table: Conformance, calls: Collection[str]) -> tuple[Known, ...]:
    """Return what the table knows to be wrong, or to crash, of a graph that makes these calls.

    `calls` are the graph's operators with the dtypes of their tensors, as
    `tasks.conformance.looking_up.calls_of` gives them. A row concerns the graph where it calls all
    that the row's smallest wrong graph calls: a fault of several operators is told where all of
    them come together. An operator's overloads count as one where their tensors are of the same
    dtypes: what is wrong with a tensor beside it is so with a number.
    """
    present = set(map(_kind, calls))
    found = []
    for row in table.rows:
        if row.standing not in ("wrong", "crashes"):
            continue
        needed = tuple(
            call for call in (row.showing.calls if row.showing else row.calls)
            if not call.startswith(_BYSTANDERS)
        )  # fmt: skip
        if needed and present.issuperset(map(_kind, needed)):
            found.append(Known(row, needed))
    return tuple(found)


def _kind(call: str) -> tuple[str, frozenset[str]]:
    """Return an operator without its overload, and the dtypes of its tensors."""
    name, _, kinds = call.removesuffix(")").partition("(")
    operator = ".".join(name.split(".")[:2])
    return operator, frozenset(kinds.split(", "))


def values_that_show(table: Conformance, call: str) -> tuple[Known, ...]:
    """Return what shows that one call is wrong (`aten.amax.default(int8)`): values and questions.

    Nothing for a call that the table holds to be right.
    """
    return known_wrong(table, (call,))


def findings_of(table: Conformance, calls: Collection[str]) -> tuple[Finding, ...]:
    """Return a note for each operator of a graph that this toolchain is known to get wrong."""
    by_calls: dict[tuple[str, ...], list[Known]] = {}
    for known in known_wrong(table, calls):
        by_calls.setdefault(known.calls, []).append(known)
    return tuple(_finding(table, group) for group in by_calls.values())


def _finding(table: Conformance, group: list[Known]) -> Finding:
    first = group[0]
    names = ", ".join(dict.fromkeys(known.row.pair for known in group))
    told = f"{' with '.join(first.calls)} is known to be {_how(first.row)} in packages for "
    told += f"{table.target} by torch {table.toolchain['torch']} (conformance: {names})"
    if showing := first.row.showing:
        told += f": {showing.question}, {showing.arguments}"
        if showing.inputs:
            told += f", such as {'; '.join(map(shown, showing.inputs))}"
        told += f": got {showing.got}, expected {showing.want}"
    if reports := sorted({number for known in group for number in known.row.reports}):
        told += f" (pytorch {', '.join(map(str, reports))})"
    return Finding(
        "known-wrong-operator", "note", told,
        "The package is compared on the inputs of the plan: see whether they hold such values. "
        f"'handoff conformance --show {first.row.operator}' prints the script that repeats it",
    )  # fmt: skip


def _how(row: Row) -> str:
    return "wrong" if row.standing == "wrong" else "crashing"


def shown(tensor: PlainTensor) -> str:
    """Return a tensor in a few words: its dtype, shape and first values."""
    values = ", ".join(f"{value:g}" for value in tensor.values[:_SHOWN_VALUES])
    dots = ", ..." if len(tensor.values) > _SHOWN_VALUES else ""
    return f"{tensor.dtype}{list(tensor.shape)} [{values}{dots}]"


def no_table(targets: Collection[str]) -> Finding:
    """Return the note that nothing is known of this toolchain's operators for some targets."""
    return Finding(
        "no-conformance-table", "note",
        f"there is no whole conformance table of this toolchain for {', '.join(targets)}: which "
        "operators it gets wrong isn't known of all",
        "Make it with 'handoff conformance'",
    )  # fmt: skip
