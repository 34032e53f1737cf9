"""What a pass is, and the one place where passes are applied.

A pass changes a graph in place and says honestly whether it did. `requires` and `ensures` raise
`PassBroken` when the graph that goes in, or the one that came out, is not what the pass promises.
(`torch.fx.passes.infra.pass_base.PassBase` shows `ensures` the graph that went in; see
`tests/tasks/optimize/passes/test_base.py`, which notices when that is fixed.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.optimize.passes.state import drop_unused_state
from handoff.tasks.optimize.recipe_names import require_parameters

Program = TypeVar("Program", torch.fx.GraphModule, ExportedProgram)


class PassBroken(Exception):
    """A pass's condition before or after it does not hold; the message says which."""


@dataclass(frozen=True)
class Calibration:
    """Inputs as they are served, of the model's own shapes and dtypes: one batch at least.

    `source` says where they come from, in words.
    """

    batches: Sequence[tuple[torch.Tensor, ...]]
    source: str


class Pass(ABC, Generic[Program]):
    """One change of a graph: `requires`, `call`, `ensures`."""

    name: ClassVar[str]
    level: ClassVar[Literal["fx", "aten"]]
    # Whether it makes the program compute in another precision: float64 would hide what it does.
    rounds: ClassVar[bool] = False
    # Parameter names, each with what it means; a recipe has to give all of them and no others.
    parameters: ClassVar[Mapping[str, str]] = {}
    # Regular expressions that parameters' values match. Both are plain literals: a recipe's
    # mistakes are found before torch is imported, by reading this file (`optimize.recipe_names`).
    forms: ClassVar[Mapping[str, str]] = {}

    def __init__(self, parameters: Mapping[str, str]) -> None:
        """Check that the recipe gave the parameters that the pass has; `UsageProblem` if not."""
        require_parameters(self.name, self.parameters, self.forms, parameters)
        self.given = dict(parameters)

    def observe(self, inputs: Sequence[tuple[torch.Tensor, ...]], recipe: Recipe) -> None:
        """Look at inputs of the plan and at the tolerances, before `call`; most passes don't."""

    def calibrate(self, calibration: Calibration) -> None:
        """Look at inputs as they are served, before `call`; most passes don't."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the last `call` did that a person should know of; kept as evidence."""
        return ()

    def requires(self, program: Program) -> None:
        """Raise `PassBroken` unless the pass may run on `program`."""

    @abstractmethod
    def call(self, program: Program) -> bool:
        """Change `program` in place and return whether anything was changed."""

    def ensures(self, program: Program) -> None:
        """Raise `PassBroken` unless the changed `program` is what the pass promises."""


class NodePass(Pass[Program]):
    """A pass that changes every node of a kind, and leaves none of them."""

    @abstractmethod
    def find(self, program: Program) -> list[torch.fx.Node]:
        """Return the nodes to change, in the graph's order."""

    @abstractmethod
    def change(self, program: Program, node: torch.fx.Node) -> None:
        """Change one of them."""

    def clean_up(self, program: Program) -> None:
        """Do what is to be done once, behind the last change."""

    def call(self, program: Program) -> bool:
        """Change them all."""
        found = self.find(program)
        for node in found:
            self.change(program, node)
        if found:
            self.clean_up(program)
        return bool(found)

    def ensures(self, program: Program) -> None:
        """Raise `PassBroken` if one is left."""
        left = [node.name for node in self.find(program)]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")


class WeightPass(NodePass[ExportedProgram]):
    """A node pass that gives layers other weights, and drops those that nothing has then."""

    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def clean_up(self, program: ExportedProgram) -> None:
        """Drop the weights that nothing has any more."""
        drop_unused_state(program)


def apply_pass(chosen: Pass[Program], program: Program) -> bool:
    """Run `chosen` on `program` in place; return whether it modified it.

    The graph is linted and its calling convention compared with the one that went in: a pass may
    not change inputs, outputs or dynamic ranges. Raises `PassBroken` for one that does, and for one
    that changes something and says that it didn't.
    """
    chosen.requires(program)
    convention, contents = _calling_convention(program), _contents(program)
    modified = chosen.call(program)
    program.graph.lint()
    if isinstance(program, torch.fx.GraphModule):
        program.recompile()
    else:
        program.graph_module.recompile()
    if _calling_convention(program) != convention:
        raise PassBroken(f"{chosen.name} changed the program's inputs or outputs")
    if not modified and _contents(program) != contents:
        raise PassBroken(f"{chosen.name} changed the program and said that it hadn't")
    chosen.ensures(program)
    return modified


def _calling_convention(program: torch.fx.GraphModule | ExportedProgram) -> object:
    """Return the inputs, the structure, shapes and dtypes of the outputs, and the ranges."""
    result = program.graph.output_node().args[0]
    leaves, structure = pytree.tree_flatten(result)
    values = [leaf.meta.get("val") for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    outputs = [(str(v.shape), v.dtype) for v in values if isinstance(v, torch.Tensor)]
    if isinstance(program, ExportedProgram):
        signature = program.graph_signature
        ranges = {str(k): str(v) for k, v in program.range_constraints.items()}
        return signature.user_inputs, len(signature.user_outputs), ranges, structure, outputs
    return [n.name for n in program.graph.find_nodes(op="placeholder")], structure, outputs


def _contents(program: torch.fx.GraphModule | ExportedProgram) -> object:
    """Return what two states of a program may differ in: its graph, and which tensors it holds."""
    calls = [(n.name, n.op, str(n.target), str(n.args), str(n.kwargs)) for n in program.graph.nodes]
    return calls, tensor_versions(program)


def tensor_versions(
    program: torch.fx.GraphModule | ExportedProgram,
) -> dict[str, tuple[int, int]]:
    """Return where each tensor of a program lies, and how often it was written to."""
    tensors = {
        **dict(program.state_dict() if callable(program.state_dict) else program.state_dict),
        **getattr(program, "constants", {}),
    }
    return {
        n: (t.data_ptr(), t._version) for n, t in tensors.items() if isinstance(t, torch.Tensor)
    }
