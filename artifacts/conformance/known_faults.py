"""What a release is told of its operators by the tables of its toolchain."""

from __future__ import annotations

from dataclasses import dataclass

from handoff.artifacts.conformance.table import PlainTensor


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
