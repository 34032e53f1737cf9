"""Conformance: which operators a toolchain gets wrong, before any model meets them.

A table belongs to one toolchain (torch, triton, compiler, target, options) and holds one row for
each operator of PyTorch's test suite, by dtype. Where an operator is wrong, the smallest input that
shows it stands beside it, as plain numbers, so that torch alone repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.record import RecordInvalid, added_field, from_plain, to_plain

SCHEMA = 1
# Raised whenever other samples or values are asked: a table of fewer questions is made again.
QUESTIONS = 1

Standing = Literal["right", "wrong", "crashes", "not compiled"]
STANDINGS: tuple[Standing, ...] = get_args(Standing)


@dataclass(frozen=True)
class PlainTensor:
    """A tensor as plain numbers, in the order of its elements; booleans are 0 and 1."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int | float, ...]


@dataclass(frozen=True)
class Counterexample:
    """One call that a package gets wrong: what was asked, with which inputs, and what came out.

    `calls` are the graph's operators with the dtypes of their tensors (`aten.amax.default(int8)`),
    and `code` the graph's own `forward`. Of output number `output`, `wrong` of `elements` elements
    differ; the first of them, at the flat place `first`, is `got` in the package and `want` in
    eager. Where dtype or shape differ, or the call raises, `first` is -1. `inputs` is empty for
    one whose tensors are too large to be kept.
    """

    question: str
    arguments: str
    calls: tuple[str, ...]
    code: str
    inputs: tuple[PlainTensor, ...]
    output: int
    wrong: int
    elements: int
    first: int
    got: str
    want: str


@dataclass(frozen=True)
class ConformanceRow:
    """What happened to one operator of PyTorch's test suite in one dtype.

    `reason` says why it crashes or isn't compiled; `asked` counts the questions that its package
    answered, and `calls` are the operators of its graphs. `showing` is the smallest call that is
    wrong, and `questions` names all that it gets wrong. `reports` are numbers of public reports in
    PyTorch's tracker.
    """

    operator: str
    dtype: str
    standing: Standing
    reason: str = added_field("")
    asked: int = added_field(0)
    calls: tuple[str, ...] = added_field(())
    showing: Counterexample | None = added_field(None)
    questions: tuple[str, ...] = added_field(())
    reports: tuple[int, ...] = added_field(())

    @property
    def pair(self) -> str:
        """Operator and dtype in one word: `amax:int8`."""
        return f"{self.operator}:{self.dtype}"


@dataclass(frozen=True)
class Conformance:
    """The table of one toolchain, made in `seconds` on the day `made` (UTC, ISO 8601).

    `toolchain` has torch, triton, compiler, target and options; `rows` are in the order of operator
    and dtype. `unasked` counts the pairs that it has no row of yet, of which nothing is known.
    """

    toolchain: dict[str, str]
    made: str
    seconds: float
    rows: tuple[ConformanceRow, ...]
    machine: str = ""
    unasked: int = 0
    questions: int = QUESTIONS
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Check the schema, and that each pair has one row."""
        if self.schema != SCHEMA:
            raise ValueError(f"expected a conformance table of schema {SCHEMA}, got {self.schema}")
        pairs = [(row.operator, row.dtype) for row in self.rows]
        if pairs != sorted(set(pairs)):
            raise ValueError("expected one row for each operator and dtype, in their order")

    @property
    def digest(self) -> Digest:
        """The digest of the toolchain that the table is about."""
        return toolchain_digest(self.toolchain)

    @property
    def target(self) -> str:
        """The target's name: `cpu-avx512`."""
        return self.toolchain["target"]

    @property
    def counts(self) -> dict[Standing, int]:
        """How many pairs stand how."""
        standings = [row.standing for row in self.rows]
        return {standing: standings.count(standing) for standing in STANDINGS}

    def operators(self, standing: Standing) -> tuple[str, ...]:
        """Return the operators that stand so in at least one dtype, in their order."""
        return tuple(dict.fromkeys(row.operator for row in self.rows if row.standing == standing))

    def rows_of_operator(self, operator: str) -> tuple[ConformanceRow, ...]:
        """Return the rows of an operator, by the test suite's name for it or ATen's."""
        return tuple(
            row for row in self.rows
            if operator in (row.operator, row.operator.partition(".")[0])
            or any(_is_call_of(call, operator) for call in row.calls)
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Return the canonical form: JSON with sorted keys, no spaces, UTF-8, one final newline.

        One line a row, so that two tables can be compared line by line. What right rows share
        is written once: they are kept by operator.
        """
        plain = to_plain(self)
        rows = plain.pop("rows")
        head = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        lines = [json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows]
        return (head[:-1] + ',"rows":[\n' + ",\n".join(lines) + "\n]}\n").encode()


def _is_call_of(call: str, operator: str) -> bool:
    name = call.partition("(")[0]
    return operator in (name, name.removeprefix("aten."), name.rpartition(".")[0])


def toolchain_digest(toolchain: Mapping[str, str]) -> Digest:
    """Return the digest that a table is found under."""
    return digest_bytes(json.dumps(dict(toolchain), sort_keys=True).encode())


def parse_conformance(data: bytes, what: str) -> Conformance:
    """Return the table in `data`; raise `StoreFailed`, naming `what`, where there is none."""
    try:
        return from_plain(Conformance, parse_json(data), "conformance")
    except (ValueError, RecordInvalid) as error:
        raise StoreFailed(
            f"{what} is no conformance table", expected=f"one of schema {SCHEMA}",
            got=str(error)[:300],
            remedy="Make it again with 'handoff conformance --again'",
        ) from error  # fmt: skip


def changed_rows(
    before: Conformance, after: Conformance
) -> list[tuple[ConformanceRow, ConformanceRow]]:
    """Return the rows of both tables whose operators stand otherwise, what breaks first.

    A row that one of the tables lacks counts for nothing: it was not asked there.
    """
    old = {row.pair: row for row in before.rows}
    changed = [
        (old[row.pair], row) for row in after.rows
        if row.pair in old and old[row.pair].standing != row.standing
    ]  # fmt: skip
    return sorted(changed, key=lambda pair: pair[1].standing not in ("wrong", "crashes"))


def describe_changes(before: Conformance, after: Conformance) -> tuple[str, ...]:
    """Return what another toolchain breaks and fixes, a sentence each."""
    changed = changed_rows(before, after)
    faulty = ("wrong", "crashes")
    broken = [new for _, new in changed if new.standing in faulty]
    fixed = [new for old, new in changed if old.standing in faulty and new.standing == "right"]
    sentences = []
    since = (
        f"{after.target}: since torch {before.toolchain['torch']}, {before.toolchain['compiler']}"
    )
    if broken:
        sentences.append(f"{since}, these are wrong: {', '.join(row.pair for row in broken)}")
    if fixed:
        sentences.append(f"{since}, these are right again: {', '.join(row.pair for row in fixed)}")
    return tuple(sentences)


@dataclass(frozen=True)
class KnownFault:
    """What a table knows a package to get wrong, or to crash at, of a graph's calls.

    `calls` are those of the graph that it takes, with their dtypes, and `description` says what is
    wrong. `inputs` are the values that show it, in the order of the operator's tensors; empty where
    none were kept. `operator` is the test suite's name for it.
    """

    calls: tuple[str, ...]
    operator: str
    description: str
    inputs: tuple[PlainTensor, ...] = ()

    @property
    def name(self) -> str:
        """The calls in short, without commas: `amax of int8`."""
        return " and ".join(map(_abbreviate_call, self.calls))


def _abbreviate_call(call: str) -> str:
    name, _, kinds = call.removesuffix(")").partition("(")
    dtypes = " and ".join(dict.fromkeys(kind for kind in kinds.split(", ") if kind))
    return name.split(".")[1] + (f" of {dtypes}" if dtypes else "")
