"""Leave out terms of sums that hardly reach the model's outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.optimize.passes.purity import pure_nodes
from handoff.tasks.optimize.passes.state import drop_unused_state
from handoff.tasks.verify.float64 import Float64Interpreter, flatten_tensors, graph_arguments

_ATEN = torch.ops.aten
_SUM = _ATEN.add.Tensor
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Term:
    """A term of a sum: the sum, what is left without the term, and the term's share of its size."""

    total: torch.fx.Node
    rest: torch.fx.Node
    left_out: torch.fx.Node
    share: float


class PruneLowInfluence(Pass[ExportedProgram]):
    """Leave out terms of sums, and all that is computed for them alone, where outputs don't move.

    Before: `y = x + f(x)`. After: `y = x`, where leaving out `f` moves no output of the model by
    more than the tolerance's `rmse_floor`, relative to the output's RMS and together with all that
    was left out before, on the inputs of the plan.

    Conditions: both terms have the shape and dtype of the sum. It is measured, not proved: inputs
    unlike those of the plan may make more of a term. What is left out is listed in the evidence.
    """

    name: ClassVar[str] = "prune-low-influence"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    parameters: ClassVar[Mapping[str, str]] = {
        "share": "a share from 0 to 1: terms of a sum that have less are tried, such as 0.001",
    }
    forms: ClassVar[Mapping[str, str]] = {
        "share": r"0?\.[0-9]+|[01](\.0*)?|[0-9](\.[0-9]+)?e-[0-9]{1,3}",
    }

    def __init__(self, parameters: Mapping[str, str]) -> None:
        """Check the share; `UsageProblem` for one that is no number between 0 and 1."""
        super().__init__(parameters)
        self._share = float(self.given["share"])
        self._inputs: Sequence[Tensors] = ()
        self._allowed = 0.0
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """Each term that was left out, with its share and how far the outputs moved."""
        return tuple(self._notes)

    def observe(self, inputs: Sequence[Tensors], recipe: Recipe) -> None:
        """Keep the inputs to measure on, and how far an output may move."""
        self._inputs = inputs
        self._allowed = recipe.tolerance_for("float32").rmse_floor

    def call(self, program: ExportedProgram) -> bool:
        """Try the terms from the smallest share on, and leave out those that may be."""
        self._notes = []
        pure = pure_nodes(program.graph)
        before = [_run(program, inputs, {}) for inputs in self._inputs]
        pruned: dict[torch.fx.Node, torch.fx.Node] = {}
        for term in self._find_terms(program, pure):
            tried = {**pruned, term.total: term.rest}
            moved = max(
                (_relative_change(_run(program, inputs, tried), outputs)
                 for inputs, outputs in zip(self._inputs, before, strict=True)),
                default=math.inf,
            )  # fmt: skip
            if moved <= self._allowed:
                pruned = tried
                self._notes.append(
                    f"{term.left_out.name} ({term.left_out.target}), {term.share:.2g} of "
                    f"{term.total.name}: the outputs move by {moved:.2g}"
                )
        for total in pruned:
            rest = pruned[total]
            while rest in pruned:
                # That one is left as its own other term.
                rest = pruned[rest]
            total.replace_all_uses_with(rest)
            program.graph_signature.replace_all_uses(total.name, rest.name)
        if pruned:
            program.graph.eliminate_dead_code()
            drop_unused_state(program)
        return bool(pruned)

    def _find_terms(self, program: ExportedProgram, pure: set[torch.fx.Node]) -> list[_Term]:
        """Return the terms that are small enough to be tried on every input, smallest first."""
        shares: dict[tuple[torch.fx.Node, int], float] = {}
        for inputs in self._inputs:
            measuring = _ShareInterpreter(program.graph_module, pure)
            measuring.run(*[tensor.clone() for tensor in graph_arguments(program, inputs)])
            for key, share in measuring.shares.items():
                shares[key] = max(shares.get(key, 0.0), share)
        terms = [
            _Term(total, *_split_sum(total, index), share)
            for (total, index), share in shares.items()
            if share <= self._share
        ]
        return sorted(terms, key=lambda term: term.share)


def _split_sum(total: torch.fx.Node, index: int) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Return the other term of the sum, and the one in `index`."""
    rest, left_out = total.args[1 - index], total.args[index]
    assert isinstance(rest, torch.fx.Node)
    assert isinstance(left_out, torch.fx.Node)
    return rest, left_out


class _ShareInterpreter(Float64Interpreter):
    """Notes, for each sum of two like tensors, how large each term is beside the sum."""

    def __init__(self, module: torch.fx.GraphModule, pure: set[torch.fx.Node]) -> None:
        super().__init__(module)
        self.shares: dict[tuple[torch.fx.Node, int], float] = {}
        self._pure = pure

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if n.target is _SUM and n in self._pure and not n.kwargs:
            size = float(value.square().mean().sqrt()) if value.numel() else 0.0
            for index, term in enumerate(n.args):
                if size and _is_like(term, n) and all(_is_like(other, n) for other in n.args):
                    part: torch.Tensor = self.env[term]
                    self.shares[n, index] = float(part.square().mean().sqrt()) / size
        return value


def _is_like(term: object, total: torch.fx.Node) -> TypeGuard[torch.fx.Node]:
    if not isinstance(term, torch.fx.Node):
        return False
    expected, actual = total.meta["val"], term.meta["val"]
    return (
        isinstance(actual, torch.Tensor)
        and actual.is_floating_point()
        and (expected.dtype, expected.shape) == (actual.dtype, actual.shape)
    )


class _PrunedInterpreter(Float64Interpreter):
    """Gives each node in `pruned` the value of the one that it is mapped to."""

    def __init__(
        self, module: torch.fx.GraphModule, pruned: Mapping[torch.fx.Node, torch.fx.Node]
    ) -> None:
        super().__init__(module)
        self._pruned = pruned

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        return self.env[self._pruned[n]] if n in self._pruned else super().run_node(n)


def _run(
    program: ExportedProgram, inputs: Tensors, pruned: Mapping[torch.fx.Node, torch.fx.Node]
) -> Tensors:
    arguments = [tensor.clone() for tensor in graph_arguments(program, inputs)]
    with torch.no_grad():
        return flatten_tensors(_PrunedInterpreter(program.graph_module, pruned).run(*arguments))


def _relative_change(after: Tensors, before: Tensors) -> float:
    """Return the largest RMS distance of an output, relative to its RMS."""
    largest = 0.0
    for new, old in zip(after, before, strict=True):
        if not old.is_floating_point():
            largest = max(largest, 0.0 if torch.equal(new, old) else math.inf)
            continue
        distance = float((new - old).square().mean().sqrt()) if old.numel() else 0.0
        size = float(old.square().mean().sqrt()) if old.numel() else 0.0
        # A NaN or an output of zeros that moves at all is too much.
        largest = max(largest, 0.0 if distance == 0.0 else distance / size if size else math.inf)
        largest = math.inf if math.isnan(distance) else largest
    return largest
