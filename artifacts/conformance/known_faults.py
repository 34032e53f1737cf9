"""What a release is told of its operators by the tables of its toolchain."""

from __future__ import annotations

from dataclasses import dataclass

from handoff.artifacts.conformance.table import PlainTensor
from handoff.artifacts.messages.job import Job
from handoff.artifacts.messages.registering import Stores
from handoff.artifacts.recipe.target import Target
from handoff.artifacts.release.evidence import Finding


@dataclass(frozen=True)
class KnownWrongJob(Job["KnownWrong"]):
    """Look a graph's calls up in the tables of today's toolchain, for each of the targets.

    `calls` are the graph's operators with the dtypes of their tensors, and `options` those of the
    recipe, for which the table without options stands in where there is none.
    """

    stores: Stores
    compiler: str
    targets: tuple[Target, ...]
    options: dict[str, object]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class KnownFault:
    """What a table knows a package to get wrong, or to crash at, of a graph's calls.

    `calls` are those of the graph that it takes, with their dtypes, and `told` says what is wrong.
    `inputs` are the values that show it, in the order of the operator's tensors; empty where none
    were kept. `operator` is the test suite's name for it.
    """

    calls: tuple[str, ...]
    operator: str
    told: str
    inputs: tuple[PlainTensor, ...] = ()

    @property
    def name(self) -> str:
        """The calls in short, without commas: `amax of int8`."""
        return " and ".join(map(_short, self.calls))


def _short(call: str) -> str:
    name, _, kinds = call.removesuffix(")").partition("(")
    of = " and ".join(dict.fromkeys(kind for kind in kinds.split(", ") if kind))
    return name.split(".")[1] + (f" of {of}" if of else "")


@dataclass(frozen=True)
class KnownWrong:
    """What the tables say of the graph: faults to ask it for, and notes for its record."""

    faults: tuple[KnownFault, ...] = ()
    notes: tuple[Finding, ...] = ()


NOTHING_KNOWN = KnownWrong()
