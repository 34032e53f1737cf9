"""Applies a pass, and compares in float64 what a program computes before and after it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from handoff.artifacts.delivery.metric import EVALUATION_FILE
from handoff.artifacts.errors import BlessingRefused, HandoffError, UsageProblem, first_line
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.evidence import PassEffect
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.optimize.folding import ModuleMemory, changes_between
from handoff.tasks.optimize.passes.base import (
    Calibration,
    Pass,
    PassBroken,
    apply_pass,
    tensor_versions,
)
from handoff.tasks.optimize.programs import ExportBroken
from handoff.tasks.verify.elements import root_mean_square, same_elements
from handoff.tasks.verify.float64 import (
    Float64Interpreter,
    flatten_tensors,
    graph_arguments,
    run_in_float64,
)
from handoff.tasks.verify.metric.measuring import find_sample_shortage

Program = TypeVar("Program", torch.fx.GraphModule, ExportedProgram)


def snapshot(program: Program) -> Program:
    """Return a copy of the program that shares its tensors: passes replace them, by their rules.

    One that writes to them is noticed by `tasks.optimize.passes.base.tensor_versions`.
    """
    return cast(Program, _copy_program(program))


def _copy_program(program: torch.fx.GraphModule | ExportedProgram) -> object:
    graph = _copy_graph(program.graph)
    if isinstance(program, torch.fx.GraphModule):
        module = torch.fx.GraphModule(program, graph, program.__class__.__name__)
        return module.train(program.training)
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )


def _copy_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy whose nodes have the same names, which an exported program's signature holds.

    Copying gives a name such as `input`, which Python knows already, a number.
    """
    copied = copy.deepcopy(graph)
    for old, new in zip(graph.nodes, copied.nodes, strict=True):
        if new.name != old.name:
            new.name = old.name
    return copied


Outputs = tuple[torch.Tensor, ...]
AnyProgram = torch.fx.GraphModule | ExportedProgram


def compute(program: AnyProgram, inputs: Outputs) -> Outputs:
    """Return the program's outputs in float64, flattened; what isn't floating-point as it is.

    `inputs` are of the program's own shapes and dtypes.
    """
    return run_in_float64(*_graph_and_arguments(program, inputs))[0]


def compute_natively(program: AnyProgram, inputs: Outputs) -> Outputs:
    """Return the program's outputs, computed in its own precisions, in float64 as `compute` does.

    `inputs` are of the program's own shapes and dtypes.
    """
    module, arguments = _graph_and_arguments(program, inputs)
    with torch.no_grad():
        result = module(*[tensor.clone() for tensor in arguments])
    return tuple(
        tensor.double() if tensor.is_floating_point() else tensor
        for tensor in flatten_tensors(result)
    )


def _graph_and_arguments(
    program: AnyProgram, inputs: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, Sequence[torch.Tensor]]:
    if isinstance(program, ExportedProgram):
        return program.graph_module, graph_arguments(program, inputs)
    return program, inputs


class _RecordingInterpreter(Float64Interpreter):
    """Keeps every node's value by its name."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op.startswith("call_"):
            # A copy: a later operator may write to it.
            self.values[n.name] = value.clone()
        return value


def _record_values(program: AnyProgram, inputs: Outputs) -> dict[str, torch.Tensor]:
    module, arguments = _graph_and_arguments(program, inputs)
    recording = _RecordingInterpreter(module)
    with torch.no_grad():
        recording.run(*[t.clone() for t in arguments])
    return recording.values


def first_difference(before: AnyProgram, after: AnyProgram, inputs: Outputs, recipe: Recipe) -> str:
    """Return the first node that both have and that differs beyond the tolerance, or ''.

    `inputs` are of the programs' own shapes and dtypes. Nodes are matched by name, which a pass
    keeps for what it doesn't make again.
    """
    was, now = _record_values(before, inputs), _record_values(after, inputs)
    for node in after.graph.nodes:
        if node.name not in was or node.name not in now:
            continue
        old, new = was[node.name], now[node.name]
        if old.shape != new.shape or difference(new, old, recipe)[1]:
            return f"{node.name} ({node.target})"
    return ""


def difference(new: torch.Tensor, old: torch.Tensor, recipe: Recipe) -> tuple[float, bool]:
    """Return the largest difference of two float64 results, and whether it leaves the tolerance.

    Both have one shape, which may be any; whole numbers and truths are compared as such. Float64
    stands for every floating-point precision here, so float32's bound is used, as `Tolerance` has
    it: an element near zero was summed from terms of the output's own size.
    """
    kind = "float32" if old.is_floating_point() else str(old.dtype).removeprefix("torch.")
    bound = recipe.tolerance_for(kind)
    wide_new, wide_old = new.double(), old.double()
    # A NaN on one side alone is no small difference; equal infinities are none.
    distance = torch.where(~same_elements(new, old), (wide_new - wide_old).abs(), 0.0)
    distance = distance.nan_to_num(nan=math.inf, posinf=math.inf)
    size = wide_old.abs().clamp_min(root_mean_square(wide_old[torch.isfinite(wide_old)]))
    allowed = bound.atol + bound.rtol * size.nan_to_num()
    return float(distance.max()) if old.numel() else 0.0, bool((distance > allowed).any())


Exportable = Callable[[torch.fx.GraphModule | ExportedProgram], None]


class PassCheck:
    """Holds the outputs on the check's inputs, and compares those after each pass with them."""

    def __init__(
        self,
        recipe: Recipe,
        inputs: Sequence[Outputs],
        module: torch.fx.GraphModule,
        require_exportable: Exportable,
        calibration: Calibration,
        *,
        metric_output_index: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """Compute what `module` gives on each of `inputs`, in float64.

        `require_exportable` is called with each program that a pass modified, and raises
        `ExportBroken`. Passes that round choose by the `calibration` how, and may move the output
        that an agreed metric is of (`metric_output_index` returns which) as far as they do.
        """
        self._recipe = recipe
        self._inputs = inputs
        self._require_exportable = require_exportable
        self._calibration = calibration
        self.memory = ModuleMemory()
        self._outputs = [compute(module, case) for case in inputs]
        self._covered = metric_output_index(len(self._outputs[0])) if self._outputs else None

    @property
    def sizes(self) -> tuple[float, ...]:
        """The root mean square of each output, at the input where that is largest."""
        return tuple(
            max(root_mean_square(_finite_values(tensor)) for tensor in outputs)
            for outputs in zip(*self._outputs, strict=True)
        )

    def apply(
        self, choice: PassChoice, chosen: Pass[Any], program: Program
    ) -> tuple[Program, PassEffect]:
        """Return the program after the pass, and what the pass did.

        A pass after which torch can't export the program is left out: the program is as it was
        before. Raises `BlessingRefused` for one that breaks its own conditions or the tolerance,
        unless the recipe says that such a pass is left out, too; and `ExportBroken` where an
        earlier pass left no program that torch takes.
        """
        try:
            before = snapshot(program)
        except Exception as error:
            # What an earlier pass left is no program in torch's eyes.
            raise ExportBroken(f"{type(error).__name__}: {first_line(error)}") from error
        versions = tensor_versions(before)
        try:
            return program, self._apply(choice, chosen, before, program)
        except ExportBroken as broken:
            why = f"the pass {chosen.name} would break the export: {broken}"
            refusal = _refusal(chosen, "a program that torch can export", str(broken))
        except BlessingRefused as error:
            if self._recipe.refuses_broken_passes:
                raise
            why, refusal = f"{error.what}: {error.got}", error
        if tensor_versions(before) != versions:
            # It wrote to weights, of which there is no second copy to go back to.
            raise refusal
        effect = PassEffect(
            chosen.name, chosen.level, modified=False, nodes_before=len(before.graph.nodes),
            nodes_after=len(before.graph.nodes), left_out=why,
        )  # fmt: skip
        return before, effect

    def _apply(
        self, choice: PassChoice, chosen: Pass[Any], before: Program, program: Program
    ) -> PassEffect:
        with _refuse_on_failure(chosen, "a pass that ends"):
            chosen.observe(self._inputs, self._recipe)
            chosen.calibrate(self._calibration)
            modified = apply_pass(chosen, program)
        largest = 0.0
        if modified:
            self._require_exportable(program)
            run = compute_natively if chosen.rounds else compute
            with _refuse_on_failure(chosen, "a program that runs as before"):
                outputs = [run(program, inputs) for inputs in self._inputs]
            for case_index, after in enumerate(outputs):
                distance = self._compare(choice, chosen, case_index, after, (before, program))
                largest = max(largest, distance)
            if chosen.rounds:
                # The next pass is compared with what its casts make of float64.
                outputs = [compute(program, inputs) for inputs in self._inputs]
            self._outputs = outputs
        return PassEffect(
            chosen.name, chosen.level, modified, len(before.graph.nodes),
            len(program.graph.nodes), largest, choice.intended, notes=chosen.notes,
            changes=changes_between(before, program, self.memory) if modified else (),
        )  # fmt: skip

    def _compare(
        self,
        choice: PassChoice,
        chosen: Pass[Any],
        case_index: int,
        after: Outputs,
        programs: tuple[Program, Program],
    ) -> float:
        """Return the largest difference on one of the inputs; refuse one that is too large."""
        expected = self._outputs[case_index]
        shapes = [[list(tensor.shape) for tensor in outputs] for outputs in (expected, after)]
        if shapes[0] != shapes[1]:
            raise _refusal(chosen, f"outputs of the shapes {shapes[0]}", f"{shapes[1]}")
        largest = 0.0
        for index, (old, new) in enumerate(zip(expected, after, strict=True)):
            if old.is_contiguous() and not new.is_contiguous():
                # A client may read its memory without looking at strides.
                want = f"output {index} contiguous as before"
                raise _refusal(chosen, want, f"the strides {new.stride()}")
            distance, is_outside = difference(new, old, self._recipe)
            largest = max(largest, distance)
            is_agreed = choice.intended or (chosen.rounds and index == self._covered)
            if is_outside and not is_agreed:
                bound = self._recipe.tolerance_for("float32")
                where = first_difference(*programs, self._inputs[case_index], self._recipe)
                raise _refusal(
                    chosen,
                    f"output {index} within atol {bound.atol:g} and rtol {bound.rtol:g} of before",
                    f"a difference of {distance:.3g} in float64"
                    + (f", first seen at {where}" if where else ""),
                )
        return largest


def covered_by_metric(recipe: Recipe, delivery: LoadedDelivery) -> Callable[[int], int | None]:
    """Return a function that says which of so many outputs an agreed metric is of, None for none.

    Raises `UsageProblem` where the recipe agrees on a metric and the delivery brings none.
    """
    contract = delivery.contract
    if recipe.metric is None:
        return lambda _: None
    if contract.metric is None:
        raise UsageProblem(
            "the recipe agrees on a metric, and the delivery brings no evaluation",
            expected=f"{EVALUATION_FILE}, and its metric in the contract", got="neither",
            remedy='Deliver with evaluation=[((x,), labels), ...] and metric="top-1", or take '
            "[metric] out of the recipe",
        )  # fmt: skip
    return contract.metric_output_index


def require_enough_samples(recipe: Recipe, delivery: LoadedDelivery) -> None:
    """Raise `BlessingRefused` where a package that changes nothing would lack samples, too.

    That is known before anything is compiled. Metrics without labels are left to verification: only
    outputs show of how many samples those are.
    """
    rule, metric = recipe.metric, delivery.contract.metric
    labels = [one.labels for one in delivery.evaluation if one.labels is not None]
    if rule is None or metric is None or not labels:
        return
    few = find_sample_shortage(metric, rule, labels)
    if few is None:
        return
    of = " of the rarer label" if metric.family == "auc" else ""
    agreed = f"max_drop = {rule.max_drop:g} with confidence = {rule.confidence:g}"
    raise BlessingRefused(
        f"the evaluation is too small to show {agreed}, whatever the package",
        expected=f"some {few.enough} samples{of}, or more"
        if few.enough else "a max_drop above 0, which samples can show",
        got=f"{few.samples} samples{of}",
        remedy="Deliver a larger evaluation, or agree on less under [metric]"
        if few.enough else "Raise max_drop under [metric]",
    )  # fmt: skip


def _finite_values(tensor: torch.Tensor) -> torch.Tensor:
    finite = tensor[tensor.isfinite()]
    return (finite.abs() if finite.is_complex() else finite).double()


@contextmanager
def _refuse_on_failure(chosen: Pass[Any], expected: str) -> Iterator[None]:
    """Refuse the pass for whatever is raised inside, other than for lack of memory."""
    try:
        yield
    except PassBroken as error:
        raise _refusal(chosen, "the conditions that the pass states", str(error)) from error
    except (HandoffError, MemoryError):
        raise
    except GuardOnDataDependentSymNode as error:
        # It asks for a size that is known only when the program runs.
        raise ExportBroken(f"{type(error).__name__}: {first_line(error)}") from error
    except Exception as error:
        raise _refusal(chosen, expected, f"{type(error).__name__}: {first_line(error)}") from error


def _refusal(chosen: Pass[Any], expected: str, got: str) -> BlessingRefused:
    return BlessingRefused(
        f"the pass {chosen.name} changes what the model computes",
        expected=expected,
        got=got,
        remedy='Leave the pass out of the recipe (broken_passes = "leave out" does it), or mark it '
        "'intended = true' if that is meant",
    )
