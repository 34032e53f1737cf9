"""Many samples in one package: exported, compiled as a release is, and called with all values."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from handoff.artifacts.recipe.target import CpuTarget
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.step import compile_package
from handoff.tasks.compile.workdir import private_cache_folder
from handoff.tasks.conformance.judging import Fault, find_fault
from handoff.tasks.conformance.lookup import calls_of
from handoff.tasks.conformance.patterns import PREFIX
from handoff.tasks.conformance.sampling import Sample
from handoff.tasks.conformance.values import AS_SAMPLED, value_sets

# The wrapper around the kernels computes nothing, and takes most of the compiler's time at its own
# level where hundreds of operators stand side by side. Large programs are compiled so, too.
_WRAPPER: dict[str, object] = {"aot_inductor.compile_wrapper_opt_level": "O0"}


@dataclass(frozen=True)
class CapturedSample:
    """A sample that torch.export takes, and the ATen calls that it becomes.

    `calls` are those of its graph, each with the dtypes of its tensors, and `code` the graph's
    own.
    """

    sample: Sample
    calls: tuple[str, ...]
    code: str

    @property
    def is_sized_by_values(self) -> bool:
        """Return whether the size of a result depends on the inputs' values."""
        return "_assert_scalar" in self.code or "sym_size" in self.code


@dataclass(frozen=True)
class WrongResult:
    """One sample under one question, and what is wrong with the package's result."""

    captured: CapturedSample
    question: str
    tensors: tuple[torch.Tensor, ...]
    fault: Fault


@dataclass
class Outcome:
    """What happened to one sample: whether it was compiled and called, and what was wrong.

    `obstacle` says why it could not be compiled or called; `asked` counts the questions that were
    answered.
    """

    captured: CapturedSample
    obstacle: str = ""
    asked: int = 0
    wrong: list[WrongResult] = field(default_factory=list)


# Takes each sample's tensors, and returns each one's results.
Package = Callable[[list[list[torch.Tensor]]], list[list[torch.Tensor]]]


class Bundle(nn.Module):
    """Calls each sample's operator on its tensors."""

    def __init__(self, samples: list[Sample]) -> None:
        """Hold the samples in their order."""
        super().__init__()
        self._samples = samples

    def forward(self, tensors: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        """Return each sample's results on its list of tensors."""
        return [
            sample.function(inputs) for sample, inputs in zip(self._samples, tensors, strict=True)
        ]


def first_line(error: BaseException) -> str:
    """Return what kind of error it is, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


class NotComparable(Exception):
    """Eager itself gives no result to compare with; the message says why."""


def eager_results(sample: Sample, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return eager's results; whatever eager raises is raised."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [one.detach() for one in sample.function([one.clone() for one in tensors])]


def require_comparable(sample: Sample) -> None:
    """Raise `NotComparable` for a result that is drawn or not dense, and for a changed input."""
    before = [tensor.clone() for tensor in sample.tensors]
    inputs = [tensor.clone() for tensor in sample.tensors]
    torch.manual_seed(1)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = sample.function(inputs)
    except Exception as error:  # the operator's own refusal of its sample
        raise NotComparable(f"eager: {first_line(error)}") from error
    # A pattern may change one: what it returns is compared.
    changed = any(not _is_same(one, other) for one, other in zip(inputs, before, strict=True))
    if changed and not sample.pair.operator.startswith(PREFIX):
        raise NotComparable("it changes its input")
    if not first:
        raise NotComparable("it returns no tensor")
    if any(one.layout is not torch.strided or one.is_quantized for one in first):
        raise NotComparable("its result is no dense tensor")
    torch.manual_seed(2)
    second = eager_results(sample, sample.tensors)
    if not all(_is_same(one, other) for one, other in zip(first, second, strict=True)):
        raise NotComparable("its result is drawn at random, or uninitialised")


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def capture(sample: Sample) -> CapturedSample:
    """Export the sample alone; raise whatever torch.export raises.

    Raises `NotComparable` where the graph draws random numbers.
    """
    program = export([sample])
    for node in program.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotComparable("its result is drawn at random")
    return CapturedSample(
        sample, tuple(sorted(calls_of(program))), program.graph_module.code.strip()
    )


def export(samples: list[Sample]) -> ExportedProgram:
    """Export the samples as one program."""
    tensors = [[one.clone() for one in sample.tensors] for sample in samples]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Bundle(samples), (tensors,))


def ask(
    captured: list[CapturedSample], target: CpuTarget, options: dict[str, object]
) -> list[Outcome]:
    """Compile the samples into one package and ask it everything; return each one's outcome.

    Samples whose sizes depend on their values fail at some values, and are compiled operator by
    operator. What can't be compiled together is compiled in halves, until the one is found that
    can't be compiled at all. A crash ends the process: the caller finds out which sample it was.
    """
    groups: dict[str, list[CapturedSample]] = {}
    for one in captured:
        groups.setdefault(one.sample.pair.operator if one.is_sized_by_values else "", []).append(
            one
        )
    return [outcome for group in groups.values() for outcome in _ask(group, target, options)]


def _ask(
    captured: list[CapturedSample], target: CpuTarget, options: dict[str, object]
) -> list[Outcome]:
    outcomes = [Outcome(one) for one in captured]
    try:
        with _compile_bundle([one.sample for one in captured], target, options) as path:
            package = torch._inductor.aoti_load_package(str(path))
            _ask_all(package, outcomes)
    except Exception as error:  # noqa: BLE001 - the obstacle is the result
        if len(captured) == 1:
            outcomes[0].obstacle = first_line(error)
            return outcomes
        middle = len(captured) // 2
        return [
            *_ask(captured[:middle], target, options), *_ask(captured[middle:], target, options)
        ]  # fmt: skip
    return outcomes


@contextmanager
def _compile_bundle(
    samples: list[Sample], target: CpuTarget, options: dict[str, object]
) -> Iterator[Path]:
    """Compile the samples as a release's program is compiled, into a package that is gone after."""
    program = export(samples)
    with private_cache_folder() as scratch, tempfile.TemporaryDirectory() as folder:
        job = CompileJob(scratch, target, Path(folder), {**options, **_WRAPPER})
        compile_package(job, program, scratch / "model.pt2")
        yield scratch / "model.pt2"


def _ask_all(package: Package, outcomes: list[Outcome]) -> None:
    """Call the package with the n-th question of every sample at once, for every n."""
    sets = [value_sets(outcome.captured.sample) for outcome in outcomes]
    for number in range(max(map(len, sets))):
        questions = [
            one[number] if number < len(one) else (AS_SAMPLED, outcome.captured.sample.tensors)
            for one, outcome in zip(sets, outcomes, strict=True)
        ]
        wants: list[list[torch.Tensor] | None] = []
        for place, outcome in enumerate(outcomes):
            try:
                wants.append(eager_results(outcome.captured.sample, questions[place][1]))
            except Exception:  # noqa: BLE001 - what eager refuses asks nothing
                wants.append(None)
                questions[place] = (AS_SAMPLED, outcome.captured.sample.tensors)
        pending = [
            place for place, want in enumerate(wants)
            if want is not None and (number == 0 or questions[place][0] != AS_SAMPLED)
        ]  # fmt: skip
        _ask_one(package, outcomes, questions, wants, pending)


def _ask_one(
    package: Package,
    outcomes: list[Outcome],
    questions: list[tuple[str, tuple[torch.Tensor, ...]]],
    wants: list[list[torch.Tensor] | None],
    pending: list[int],
) -> None:
    """Call the package; where it raises, with half of the questions, until the culprit is alone."""
    if not pending:
        return
    inputs = [
        [one.clone() for one in (
            questions[place][1] if place in set(pending) else outcome.captured.sample.tensors
        )]
        for place, outcome in enumerate(outcomes)
    ]  # fmt: skip
    try:
        results = package(inputs)
    except Exception as error:
        if questions[pending[0]][0] == AS_SAMPLED:
            raise
        if len(pending) > 1:
            middle = len(pending) // 2
            _ask_one(package, outcomes, questions, wants, pending[:middle])
            _ask_one(package, outcomes, questions, wants, pending[middle:])
            return
        outcome = outcomes[pending[0]]
        question, tensors = questions[pending[0]]
        fault = Fault(0, 1, 1, -1, first_line(error), "a result")
        outcome.wrong.append(WrongResult(outcome.captured, question, tensors, fault))
        return
    for place in pending:
        outcome, want = outcomes[place], wants[place]
        assert want is not None
        question, tensors = questions[place]
        outcome.asked += 1
        mismatch = find_fault(outcome.captured.sample, tensors, list(results[place]), want)
        if mismatch is not None:
            outcome.wrong.append(WrongResult(outcome.captured, question, tensors, mismatch))


def silence_warnings() -> None:
    """Keep Inductor's warnings about operators without a shim out of the log."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch._inductor.ir").setLevel(logging.ERROR)
