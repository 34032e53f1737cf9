"""Tap: where an output says nothing, the values inside the graph that lead to it do.

A freshly initialised classifier gives zeros, whatever its layers compute: its head is zero. Any
package would pass. What a chaotic map gives hangs on rounding alone, and no package can be held to
it. So the same program is compiled once more with the last values before such an output that vary
and are comparable as its outputs, and those are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from handoff.tasks.optimize.programs import load_program, save_program
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.elements import FEWEST_RUNS, MOST_INCOMPARABLE, ROOM_PER_MOVE
from handoff.tasks.verify.float64 import graph_arguments, run_in_float64
from handoff.tasks.verify.messages import TapJob, TapResult
from handoff.tasks.verify.mha_fastpath import by_definition
from handoff.tasks.verify.reference import ReferenceCase, load_cases, save_cases
from handoff.tasks.verify.scale import NO_SCALE

PROGRAM_FILE = "tapped.pt2"
REFERENCE_FILE = "tapped-reference.pt"

_MOST_TAPS = 4


@by_definition()
def run(job: TapJob) -> TapResult:
    """Write the tapped program and its reference to `job.folder`.

    Where nothing on the way to the blind outputs changes with the inputs, there is nothing to tap:
    the result names no nodes, and nothing is written.
    """
    program = load_program(job.program)
    cases = [case for case in load_cases(job.reference) if case.values == "drawn"]
    varied = _varied_nodes(program, cases)
    if cases:
        varied &= _comparable_nodes(program, cases[len(cases) // 2])
    taps = _last_varied(program, job.blind, varied)
    if not taps:
        return TapResult(job.program, job.reference, ())
    _return_only(program, taps)
    job.folder.mkdir(parents=True, exist_ok=True)
    tapped_cases = [_tapped_case(program, case) for case in cases]
    save_cases(tapped_cases, job.folder / REFERENCE_FILE)
    save_program(program, job.folder / PROGRAM_FILE)
    names = tuple(f"{node.name} ({node.target})" for node in taps)
    return TapResult(job.folder / PROGRAM_FILE, job.folder / REFERENCE_FILE, names)


class _RangeRecorder(torch.fx.Interpreter):
    """Notes the range of each floating-point value."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.ranges: dict[torch.fx.Node, tuple[float, float]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if n.op == "call_function" and is_float and value.numel():
            self.ranges[n] = (float(value.min()), float(value.max()))
        return value


def _varied_nodes(program: ExportedProgram, cases: Sequence[ReferenceCase]) -> set[torch.fx.Node]:
    """Return the values that are finite and not one number in all cases that depend on inputs."""
    ranges: dict[torch.fx.Node, list[float]] = {}
    for case in cases:
        recorder = _RangeRecorder(program.graph_module)
        with torch.no_grad():
            recorder.run(*[t.clone() for t in graph_arguments(program, case.inputs)])
        for node, ends in recorder.ranges.items():
            ranges.setdefault(node, []).extend(ends)
    dependent = _dependent_nodes(program)
    return {n for n, ends in ranges.items() if n in dependent and min(ends) < max(ends)}


class _ValueRecorder(torch.fx.Interpreter):
    """Keeps each floating-point value, as it was when its node had run."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.values: dict[torch.fx.Node, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor) and value.numel():
            self.values[n] = value.clone()
        return value


def _comparable_nodes(program: ExportedProgram, case: ReferenceCase) -> set[torch.fx.Node]:
    """Return the values few of whose elements rounding alone moves by about their own size."""
    arguments = graph_arguments(program, case.inputs)
    recorder = _ValueRecorder(program.graph_module)
    with torch.no_grad():
        recorder.run(*[t.clone() for t in arguments])
    nodes, values = list(recorder.values), tuple(recorder.values.values())

    def inner(*inputs: torch.Tensor) -> list[torch.Tensor]:
        inner_recorder = _ValueRecorder(program.graph_module)
        inner_recorder.run(*inputs)
        return [inner_recorder.values[node] for node in nodes]

    conditioning = Conditioning(inner, arguments, values, case.name)
    comparable = set()
    for index, node in enumerate(nodes):
        size = NO_SCALE.sizes(values[index].double())
        moved = ROOM_PER_MOVE * conditioning.moved(index, FEWEST_RUNS)
        if float((moved > size).double().mean()) <= MOST_INCOMPARABLE:
            comparable.add(node)
    return comparable


def _dependent_nodes(program: ExportedProgram) -> set[torch.fx.Node]:
    input_names = set(program.graph_signature.user_inputs)
    dependent: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        if node.name in input_names or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
    return dependent


def _last_varied(
    program: ExportedProgram, blind: Sequence[int], varied: set[torch.fx.Node]
) -> list[torch.fx.Node]:
    """Return the varied values nearest before the blind outputs, the last ones first."""
    outputs = program.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    # Behind the user's outputs may stand buffers that the graph writes.
    written = len(outputs) - len(program.graph_signature.user_outputs)
    upstream = {outputs[written + index] for index in blind}
    found: list[torch.fx.Node] = []
    for node in reversed(program.graph.nodes):
        if node not in upstream:
            continue
        if node in varied:
            found.append(node)
        else:
            upstream.update(node.all_input_nodes)
    return found[:_MOST_TAPS]


def _return_only(program: ExportedProgram, taps: list[torch.fx.Node]) -> None:
    """Let the program return the taps and nothing else."""
    output = program.graph.output_node()
    output.args = (tuple(taps),)
    program.graph_signature.output_specs[:] = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in taps
    ]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    call = program.module_call_graph[0].signature
    if call is not None:
        call.outputs = [TensorArgument(node.name) for node in taps]
        call.out_spec = torch.utils._pytree.tree_structure(tuple(taps))


def _tapped_case(program: ExportedProgram, case: ReferenceCase) -> ReferenceCase:
    arguments = graph_arguments(program, case.inputs)
    with torch.no_grad():
        eager = torch.fx.Interpreter(program.graph_module).run(*[t.clone() for t in arguments])
    exact, _ = run_in_float64(program.graph_module, arguments)
    return ReferenceCase(case.name, case.inputs, tuple(eager), exact)
