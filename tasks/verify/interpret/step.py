"""Interpret: a GPU's kernels, run without the GPU, beside eager; the first wrong one is named."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.artifacts.recipe.compatibility import base_version
from handoff.artifacts.recipe.tolerance import largest_difference
from handoff.artifacts.release.evidence import SourceCheck
from handoff.tasks.compile.cross.python_program import PythonProgram, write_python_program
from handoff.tasks.compile.messages import KernelSource
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify.elements import root_mean_square
from handoff.tasks.verify.findings import Findings, yardsticks_of
from handoff.tasks.verify.interpret.kernel import KernelFailedError
from handoff.tasks.verify.interpret.language import NotInterpretedError
from handoff.tasks.verify.interpret.messages import InterpretJob, InterpretResult
from handoff.tasks.verify.interpret.program import NotCheckableError, split_program
from handoff.tasks.verify.interpret.run import InterpretedProgram, Tensors, on_cpu, prepare
from handoff.tasks.verify.messages import VerifyJob
from handoff.tasks.verify.reference import ReferenceCase, load_cases
from handoff.tasks.verify.step import model_of

# How far a buffer may lie from the graph's value, relative to that, before it counts as wrong:
# far more than rounding, far less than what makes an output wrong.
_MOST_DISTANCE = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}


def find_wrong_kernel(
    program: PythonProgram, interpreted: InterpretedProgram, inputs: Tensors
) -> str:
    """Return which kernel first writes what the graph doesn't compute there, by its lines.

    '' where each buffer that is known in the graph holds what it should. `inputs` are those of a
    case whose outputs are wrong.
    """
    recorder = _ValueRecorder(program)
    with torch.no_grad():
        recorder.run(*inputs)
    problems: list[str] = []

    def watch(buffer: str, value: torch.Tensor, by: str) -> None:
        node = program.nodes.get(buffer, "")
        expected = recorder.values.get(node)
        if problems or expected is None or expected.numel() != value.numel():
            return
        distance = _relative_distance(value.reshape(expected.shape), expected)
        if not distance <= _MOST_DISTANCE.get(expected.dtype, 0.0):
            extent = (
                f"by {distance:.2g} of its size"
                if math.isfinite(distance)
                else "where one isn't finite"
            )
            problems.append(f"{by}: what it writes to {buffer} isn't the graph's {node}, {extent}")

    interpreted.watch = watch
    try:
        interpreted(inputs)
    except KernelFailedError as error:
        problems.append(str(error))
    finally:
        interpreted.watch = None
    return problems[0] if problems else ""


def _relative_distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return how far two tensors of one shape lie apart, relative to the second."""
    left, right = got.double(), want.double()
    both = torch.isfinite(left) & torch.isfinite(right)
    alike = both | (left == right) | (torch.isnan(left) & torch.isnan(right))
    if not bool(alike.all()):
        return float("inf")
    size = root_mean_square(right[both])
    error = root_mean_square((left - right)[both])
    return error / size if size else error


class _ValueRecorder(torch.fx.Interpreter):
    """Runs the graph on the CPU, and keeps what each node gives."""

    def __init__(self, program: PythonProgram) -> None:
        super().__init__(program.graph)
        self.values: dict[str, torch.Tensor] = {}
        self._attributes: Mapping[str, torch.Tensor] = program.attributes

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever a node gives
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            # A copy, because a later node may change it in place.
            self.values[n.name] = value.clone()
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - fx's
        return self._attributes[str(target)]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - fx's
        function = on_cpu(target) if isinstance(target, OpOverload) else target
        return super().call_function(function, args, kwargs)


# Whose generated Python, and whose interpreter, is known.
_KNOWN_TORCH = ("2.15.0",)
# The smallest ones are a single program.
_BACKWARDS_AT = 3
# After so many wrong cases no more are run: each takes long, and the first shows enough.
_WRONG_ENOUGH = 3


def run(job: InterpretJob) -> InterpretResult:
    """Run the program that Inductor writes of `job.program` for its GPU, and compare it with eager.

    Its kernels have to be those that the package was compiled of, by their sources. What can't be
    run here leaves the package unchecked, and says why; a kernel that is wrong, or leaves its
    buffers, is a reason.
    """
    try:
        program, interpreted = _prepare(job)
        return _compare(job, program, interpreted)
    except (NotCheckableError, NotInterpretedError, BlessingRefused, EnvironmentLacking) as error:
        return InterpretResult(None, unchecked=str(error))


def _prepare(job: InterpretJob) -> tuple[PythonProgram, InterpretedProgram]:
    if base_version(torch.__version__) not in _KNOWN_TORCH:
        raise NotCheckableError(f"what torch {torch.__version__} writes isn't known here")
    program = write_python_program(
        load_program(job.program), job.target.profile, job.recipe.options
    )
    parts = split_program(program.text, operators_of(program.graph))
    blocks = {source.name: source.blocks for source in job.sources}
    interpreted = prepare(program, parts, blocks, job.folder)
    _require_same_kernels(interpreted, job.sources)
    return program, interpreted


def operators_of(graph: torch.fx.GraphModule) -> set[str]:
    """Return the names of the operators that the graph calls, without their overloads."""
    return {
        node.target.name().partition(".")[0]
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    }


def _require_same_kernels(interpreted: InterpretedProgram, sources: Sequence[KernelSource]) -> None:
    """Raise `NotCheckableError` unless the kernels are those of the package, by their sources."""
    compiled = {source.name: source.digest for source in sources}
    here = {name: kernel.digest for name, kernel in interpreted.kernels.items()}
    others = sorted(compiled.keys() ^ here.keys())
    others += [name for name in compiled if name in here and compiled[name] != here[name]]
    if others:
        raise NotCheckableError(
            f"the kernel {others[0]} isn't the one that was compiled into the package"
        )


@dataclass
class _Progress:
    """What has been run so far."""

    findings: Findings
    cases: list[str] = field(default_factory=list)
    failing: tuple[ReferenceCase, bool] | None = None
    drawn: int = 0
    largest: int = 0
    rate: float = 0.0


def _compare(
    job: InterpretJob, program: PythonProgram, interpreted: InterpretedProgram
) -> InterpretResult:
    cases = load_cases(job.reference)
    verifying = VerifyJob(
        job.folder, job.reference, job.recipe, outputs=job.outputs, target=job.target.slug,
        staging=job.staging, program=job.model,
    )  # fmt: skip
    progress = _Progress(Findings(verifying, yardsticks_of(cases), model_of(verifying)))
    deadline = time.monotonic() + job.seconds
    for case in sorted(cases, key=_sort_key):
        left = deadline - time.monotonic()
        too_long = progress.rate * _size(case) > left
        if progress.cases and (too_long or progress.findings.wrong_cases >= _WRONG_ENOUGH):
            continue
        _run_case(progress, interpreted, case)
    findings = progress.findings
    findings.refuse_decisions()
    findings.note_unjudged_elements()
    if findings.reasons:
        return InterpretResult(
            None, _reasons_with_kernel(progress, program, interpreted), tuple(findings.notes)
        )
    names = {name: str(kernel.digest) for name, kernel in interpreted.kernels.items()}
    launched = interpreted.launched
    return InterpretResult(
        SourceCheck(
            {name: digest for name, digest in names.items() if name in launched},
            tuple(progress.cases), largest_difference(findings.deviations) or 0.0,
            interpreted.programs, tuple(name for name in names if name not in launched),
            len(cases) - len(progress.cases), tuple(dict.fromkeys(interpreted.external)),
        ),
        notes=tuple(findings.notes),
    )  # fmt: skip


def _sort_key(case: ReferenceCase) -> tuple[bool, int]:
    return case.values != "drawn", _size(case)


def _size(case: ReferenceCase) -> int:
    return sum(tensor.numel() for tensor in case.inputs)


def _run_case(progress: _Progress, interpreted: InterpretedProgram, case: ReferenceCase) -> None:
    """Compare one case; a kernel that fails where what is asked isn't served is a note.

    The third case of usual values is run with each grid's programs in the other order, too.
    """
    progress.drawn += case.values == "drawn"
    for backwards in (False, True) if progress.drawn == _BACKWARDS_AT else (False,):
        interpreted.backwards = backwards
        _run_once(progress, interpreted, case)
    interpreted.backwards = False


def _run_once(progress: _Progress, interpreted: InterpretedProgram, case: ReferenceCase) -> None:
    began, before = time.monotonic(), len(progress.findings.reasons)
    name = f"{case.name}, backwards" if interpreted.backwards else case.name
    try:
        outputs = interpreted(case.inputs)
    except KernelFailedError as error:
        text = f"{name}: {error}"
        progress.findings.wrong_cases += case.is_served
        (progress.findings.reasons if case.is_served else progress.findings.notes).append(text)
    else:
        progress.findings.compare(name, case, outputs)
        if len(progress.findings.reasons) > before and progress.failing is None:
            progress.failing = case, interpreted.backwards
    progress.cases += [] if interpreted.backwards else [name]
    if (size := _size(case)) >= progress.largest:
        # What small cases take says little of large ones: much of it is the same for all.
        progress.largest, progress.rate = size, (time.monotonic() - began) / max(size, 1)


def _reasons_with_kernel(
    progress: _Progress, program: PythonProgram, interpreted: InterpretedProgram
) -> tuple[str, ...]:
    """Return the reasons, the first of which names the kernel where one was found to be wrong."""
    reasons = tuple(progress.findings.reasons)
    if progress.failing is None:
        return reasons
    case, interpreted.backwards = progress.failing
    culprit = find_wrong_kernel(program, interpreted, case.inputs)
    culprit = (
        culprit or "no buffer that is known in the graph is wrong: the calls around the kernels are"
    )
    return (culprit, *reasons)
