"""A graph folded to its modules: small enough to be kept in a record and drawn on a page."""

from __future__ import annotations

from dataclasses import dataclass

INPUTS, OUTPUTS, MODEL = "(inputs)", "(outputs)", "(model)"


@dataclass(frozen=True)
class FoldedModule:
    """One box: a module's path, how often each operator occurs in it, and which boxes it feeds.

    `operators` are the most frequent ones, by name; further kinds are counted as `other`. `feeds`
    are places in the graph's `modules`. `(inputs)` and `(outputs)` hold no operators but names.
    """

    path: str
    operators: dict[str, int]
    feeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class FoldedGraph:
    """The boxes of one graph in the order of their first operators; `nodes` were folded."""

    nodes: int
    modules: tuple[FoldedModule, ...]


@dataclass(frozen=True)
class FoldedGraphs:
    """The graph as it was delivered, and as it was given to the compiler.

    Paths are cut to the same depth in both, and in what each pass changed.
    """

    delivered: FoldedGraph
    compiled: FoldedGraph
