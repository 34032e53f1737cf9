"""The reference: what the delivered model itself gives on the input plan, and gives in float64.

What a cast gives of numbers that the whole type doesn't hold, and of NaN, C++ leaves open, and so
does PyTorch's documentation (`torch.Tensor.to`). Processors, and vectors
beside single numbers, give different ones. Comparing them compares nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import DeliveryUnsound, HandoffError, first_line
from handoff.infra.engine.budget import is_out_of_memory
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.timing.conditions import digest_conditions, shared_with
from handoff.tasks.verify.by_definition import by_definition
from handoff.tasks.verify.elements import identical
from handoff.tasks.verify.float64 import (
    flat_tensors,
    kept_casts,
    lifted_inputs,
    run_in_float64,
    same_tensors,
)
from handoff.tasks.verify.messages import ReferenceJob, ReferenceResult
from handoff.tasks.verify.metric.evaluating import run_eager
from handoff.tasks.verify.plan import (
    CaseSpec,
    eight_bit_cases,
    plan_cases,
    sizes_text,
    special_cases,
)
from handoff.tasks.verify.questions.cases import Question, ask_for, find_questions
from handoff.tasks.verify.special import (
    EXTREMES,
    NOT_FINITE,
    PARTS,
    UNDECLARED,
    Values,
    dynamic_axes,
)


class OpenCasts(TorchDispatchMode):
    """While it is entered, notes the first cast whose result is left open: `float32 to int8`."""

    def __init__(self) -> None:
        """Begin with none noted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and look at what it converts."""
        kwargs = kwargs or {}
        if not self.found:
            self._look(func._schema.name, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, name: str, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        if name == "aten::_to_copy":
            given, kind = args[0], kwargs.get("dtype")
        elif name == "aten::copy_":
            given, kind = args[1], args[0].dtype
        else:
            return
        if isinstance(kind, torch.dtype) and not _is_held(given, kind):
            of = str(given.dtype).removeprefix("torch.")
            self.found = f"{of} to {str(kind).removeprefix('torch.')}"


def _is_held(given: torch.Tensor, kind: torch.dtype) -> bool:
    """Tell whether a whole type holds all of some floating-point numbers, cut to whole ones.

    They may be of any shape; of other dtypes than floating-point all counts as held.
    """
    if not given.is_floating_point() or not given.numel():
        return True
    if kind.is_floating_point or kind.is_complex or kind is torch.bool:
        return True
    limits, wide = torch.iinfo(kind), given.double().trunc()
    return bool(((wide >= limits.min) & (wide <= limits.max)).all())


Tensors = tuple[torch.Tensor, ...]

# What eager makes of the evaluation.
EAGER_FILE = "evaluation.pt"

# Up to how many bytes of intermediate results a size is run on special values.
_CHEAP_BYTES = 2**27
# Questions are asked at the smallest size that has so many rows: they differ row by row.
_ROWS = 7
# In parts of what one case may take: two in float64, eager, and what is kept of them.
_AT_ONCE = 4
# All of the questions together may make so many times the bytes that the drawn inputs do, or so
# many at the least.
_SHARE_OF_QUESTIONS = 0.3
_LEAST_BYTES = 2**28

Eager = Callable[..., Any]
Float64 = Callable[[Tensors], tuple[Tensors, int]]
Exact = Future[tuple[Tensors, int]]
Beside = Callable[[Tensors], Exact]


@dataclass(frozen=True)
class ReferenceCase:
    """One input of the plan, and what eager and float64 make of it, flattened.

    `inputs` are of the signature's shapes and dtypes, `eager` of the model's own; `float64` has in
    float64 what is floating-point, and the rest as it is.

    `axes` are those of each input that are dynamic, where its values are repeated along them.
    `left` are the inputs as eager leaves them behind; empty where it doesn't touch any.
    `undeclared` names the inputs that hold values which were neither drawn nor declared.
    """

    name: str
    inputs: Tensors
    eager: Tensors
    float64: Tensors
    values: Values = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()
    left: Tensors = ()
    undeclared: tuple[str, ...] = ()

    @property
    def is_served(self) -> bool:
        """Tell whether all its values are declared to be served, or are as usual as drawn ones."""
        return _is_served(self)


@by_definition()
def run(job: ReferenceJob) -> ReferenceResult:
    """Write the reference outputs of the delivery in `job.staging` to `job.file`."""
    delivery = read_delivery(job.staging)
    eager, in_float64 = reference_functions(delivery, job.reference)
    cases = []
    skipped: list[str] = []

    @contextmanager
    def noted(planned: _Planned) -> Iterator[None]:
        try:
            yield
        except _LeftOpen as error:
            skipped.append(f"{planned.name}: {error}, and nothing defines the result")
        except Exception as error:
            if planned.values == "drawn":
                if isinstance(error, HandoffError) or is_out_of_memory(error):
                    raise
                raise _fails_where_declared(planned.name, error) from error
            # What the model itself doesn't take can't be compared.
            why = first_line(error, 200)
            skipped.append(f"{planned.name}: the model itself fails: {why}")

    # Compilers are the second that computes beside this.
    with shared_with(2), _aside(in_float64()) as beside:
        planner = _Planner(delivery, job, eager, lambda inputs: beside(inputs).result(), skipped)
        running = []
        for planned in planner.inputs():
            with noted(planned):
                running.append(_run_case(planned, eager, beside))
                if planner.is_large(planned.inputs):
                    wait([running[-1].exact])
        _take_over(running, in_float64())
        for ran in running:
            with noted(ran.planned):
                cases.append(ran.case())
    job.file.parent.mkdir(parents=True, exist_ok=True)
    save_cases(cases, job.file)
    evaluation = run_eager(delivery, job.file.with_name(EAGER_FILE))
    names = tuple(case.name for case in cases)
    # What a table adds isn't the same wherever the delivery and the recipe are.
    added = set(planner.asked.values())
    plan = _digest_inputs([case for case in cases if case.name not in added])
    asked = {fault: case for fault, case in planner.asked.items() if case in names}
    return ReferenceResult(
        job.file, names, tuple(skipped), plan, digest_conditions(), asked, evaluation
    )


def _fails_where_declared(case: str, error: Exception) -> DeliveryUnsound:
    """Return the refusal of a model that fails where its contract says that it runs."""
    return DeliveryUnsound(
        f"the model itself fails at {case}, which its contract declares",
        expected="a model that runs at every size and on every value that its contract declares",
        got=f"{type(error).__name__}: {first_line(error, 200)}",
        remedy="Declare what it takes (dimensions={NAME: (MIN, MAX)}, ranges={INPUT: (LOW, "
        "HIGH)}), and deliver it again",
    )


class _LeftOpen(Exception):
    """Nothing defines what the model gives for undeclared inputs; the message says why."""


@dataclass(frozen=True)
class _Planned:
    """The inputs of a case, before anything has run."""

    name: str
    inputs: Tensors
    values: Values = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()
    undeclared: tuple[str, ...] = ()


def _is_served(case: _Planned | ReferenceCase) -> bool:
    return not case.undeclared and case.values not in NOT_FINITE


@contextmanager
def _aside(float64: Float64) -> Iterator[Beside]:
    """Give what computes in float64 beside the body, in order, with as many threads as the body.

    What it hasn't begun when the body fails is left.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))
    try:
        yield lambda inputs: pool.submit(float64, inputs)
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass
class _Ran:
    """A case that eager has run, and that is run in float64 or will be."""

    planned: _Planned
    outputs: Tensors
    left: Tensors
    exact: Exact

    def case(self) -> ReferenceCase:
        """Return the whole case, once it was run; raise what that did."""
        planned = self.planned
        return ReferenceCase(
            planned.name, planned.inputs, self.outputs, self.exact.result()[0], planned.values,
            planned.axes, self.left, planned.undeclared,
        )  # fmt: skip


def _take_over(running: Sequence[_Ran], float64: Float64) -> None:
    """Run here, from the last on, what isn't begun yet beside."""
    for ran in reversed(running):
        if not ran.exact.cancel():
            return
        ran.exact = Future()
        try:
            ran.exact.set_result(float64(ran.planned.inputs))
        except Exception as error:  # noqa: BLE001 - as one that ran beside
            ran.exact.set_exception(error)


def _run_case(planned: _Planned, eager: Eager, beside: Beside) -> _Ran:
    # Copies, because a model may change its inputs in place.
    given = tuple(tensor.clone() for tensor in planned.inputs)
    casts = None if _is_served(planned) else OpenCasts()
    with torch.no_grad(), casts or nullcontext():
        outputs = tuple(tensor.clone() for tensor in flat_tensors(eager(*given)))
    if casts and casts.found:
        raise _LeftOpen(f"what the model casts ({casts.found}) lies beyond what that type holds")
    left = () if identical(given, planned.inputs) else given
    return _Ran(planned, outputs, left, beside(planned.inputs))


def _digest_inputs(cases: Sequence[ReferenceCase]) -> Digest:
    """Return the digest of all names and inputs of these cases, as they were carried out."""
    whole = hashlib.sha256()
    for case in cases:
        whole.update(f"{case.name}\n".encode())
        for tensor in case.inputs:
            whole.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
            whole.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return Digest(f"sha256:{whole.hexdigest()}")


def save_cases(cases: Sequence[ReferenceCase], path: Path) -> None:
    """Write cases to `path`, for `load_cases`."""
    torch.save([vars(case) for case in cases], path)


def load_cases(path: Path) -> tuple[ReferenceCase, ...]:
    """Return the cases that `run` wrote to `path`, mapped from the file rather than copied."""
    plain = torch.load(path, weights_only=True, mmap=True)
    return tuple(ReferenceCase(**case) for case in plain)


def reference_functions(
    delivery: LoadedDelivery, program_file: Path | None
) -> tuple[Eager, Callable[[], Float64]]:
    """Return what computes the reference in its own precision, and what makes those in float64.

    All take the signature's shapes and dtypes; those in float64 give `run_in_float64`'s results.
    That is the delivered module, or the program in `program_file` where a recipe changes the
    numbers on purpose: our own optimize step wrote that. Each has modules of its own, with the same
    weights, so that each may be called by a thread while others call the others.
    """
    if program_file is None:
        module = delivery.module
        return module, lambda: _in_float64(same_tensors(module), lambda inputs: inputs)
    program = load_program(program_file)
    return program.module(), lambda: _in_float64(
        same_tensors(program.graph_module), lambda inputs: lifted_inputs(program, inputs)
    )


def _in_float64(
    module: torch.fx.GraphModule, arguments: Callable[[Tensors], Sequence[torch.Tensor]]
) -> Float64:
    kept: dict[str, torch.dtype] | None = None

    def run(inputs: Tensors) -> tuple[Tensors, int]:
        nonlocal kept
        given = arguments(inputs)
        if kept is None:
            kept = dict(kept_casts(module, given))
        return run_in_float64(module, given, kept)

    return run


class _Planner:
    """Gives the inputs of the plan, and notes in `skipped` what is left out, and why.

    `asked` has the names of the cases that ask for the job's known faults, by the faults' names.
    What a size takes is extrapolated from the smallest size, whose intermediate results are
    counted: they grow with the product of the dynamic dimensions for most models.
    """

    def __init__(
        self,
        delivery: LoadedDelivery,
        job: ReferenceJob,
        eager: Eager,
        float64: Float64,
        skipped: list[str],
    ) -> None:
        self.asked: dict[str, str] = {}
        self._known, self._plan, self._delivery = job.known, job.plan, delivery
        self._eager, self._float64, self._skipped = eager, float64, skipped
        self._signature = delivery.contract.signature
        self._bytes_per_unit = 0.0
        self._spent = 0.0

    def inputs(self) -> Iterator[_Planned]:
        """Give random draws, special values, what the graph asks, and the delivery's examples."""
        cheap: list[CaseSpec] = []
        for spec in plan_cases(self._signature, self._plan.seeds):
            inputs = self._delivery.draw(spec)
            needed = self._bytes(spec.sizes, inputs)
            if needed > self._plan.max_bytes:
                if spec.seed == 0:
                    self._skipped.append(
                        f"{sizes_text(spec.sizes)}: about {needed / 2**30:.1f} GiB of intermediate "
                        f"results, more than the plan's {self._plan.max_bytes / 2**30:.1f}"
                    )
                continue
            if not cheap or needed <= _CHEAP_BYTES:
                cheap.append(spec)
            self._spent += needed
            yield _Planned(spec.name, inputs)
        yield from self._special_inputs(cheap)
        yield from self._example_inputs()

    def _special_inputs(self, cheap: Sequence[CaseSpec]) -> Iterator[_Planned]:
        if not cheap:
            return
        asking = _asking_size(cheap)
        text = sizes_text(asking.sizes)
        room = max(_LEAST_BYTES, _SHARE_OF_QUESTIONS * self._spent)
        left_out = []
        # The largest of the cheap sizes: it has whole vectors and a rest.
        for spec in special_cases(self._signature, cheap[-1].sizes, EXTREMES):
            axes = tuple(map(dynamic_axes, self._signature.inputs))
            repeated = axes if spec.values == "repeated" else ()
            drawn = self._delivery.draw(spec)
            yield _Planned(spec.name, drawn, spec.values, repeated, self._undeclared(spec.values))
        for planned, sizes in self._questions(asking):
            room -= self._bytes(sizes, planned.inputs)
            if room < 0:
                left_out.append(planned.name.removeprefix(text).strip())
            else:
                yield planned
        if left_out:
            self._skipped.append(
                f"{text} with these special values, which would take too much memory and time: "
                + ", ".join(left_out)
            )

    def _questions(self, asking: CaseSpec) -> Iterator[tuple[_Planned, Mapping[str, int]]]:
        """Give what is asked at one size, and of all graphs that reduce 8 bits at several."""
        drawn = self._delivery.draw(asking)
        questions, tracing = find_questions(self._signature.inputs, self._eager, drawn)
        for fault in self._known:
            # First, so that no lack of room leaves it out.
            one = ask_for(fault, self._signature.inputs, drawn, tracing)
            if one is not None:
                planned = _as_planned(one, asking)
                self.asked[fault.name] = planned.name
                yield planned, asking.sizes
        for spec in special_cases(self._signature, asking.sizes, PARTS):
            planned = _Planned(
                spec.name, self._delivery.draw(spec), spec.values,
                undeclared=self._undeclared(spec.values),
            )  # fmt: skip
            yield planned, spec.sizes
        for one in questions:
            yield _as_planned(one, asking), asking.sizes
        for spec in eight_bit_cases(self._signature) if tracing.eight_bit_reductions else ():
            yield _Planned(spec.name, self._delivery.draw(spec), spec.values), spec.sizes

    def _undeclared(self, values: Values) -> tuple[str, ...]:
        if values not in UNDECLARED:
            return ()
        return tuple(
            spec.name for spec in self._signature.inputs
            if spec.is_unlimited
        )  # fmt: skip

    def _example_inputs(self) -> Iterator[_Planned]:
        signature = self._signature
        for index, case in enumerate(self._delivery.cases):
            shapes = zip(signature.inputs, case.inputs, strict=True)
            sizes = signature.measure({spec.name: tuple(t.shape) for spec, t in shapes})
            yield _Planned(f"{sizes_text(sizes)} example={index}", case.inputs)

    def is_large(self, inputs: Tensors) -> bool:
        """Tell whether two like it in float64, and eager beside them, may be too much at once."""
        sizes = self._signature.measure_inputs(inputs)
        return self._bytes(sizes, inputs) > self._plan.max_bytes / _AT_ONCE

    def _bytes(self, sizes: Mapping[str, int], inputs: Tensors) -> float:
        """Return what the intermediate results of these sizes take."""
        units = math.prod(sizes.values())
        if not self._bytes_per_unit and units:
            self._bytes_per_unit = self._float64(inputs)[1] / units
        return self._bytes_per_unit * units


def _as_planned(question: Question, asking: CaseSpec) -> _Planned:
    values: Values = "asked far" if question.undeclared else "asked"
    if not all(bool(tensor.isfinite().all()) for tensor in question.inputs):
        values = "asked not finite"
    name = f"{sizes_text(asking.sizes)} {question.asks}"
    return _Planned(name, question.inputs, values, undeclared=question.undeclared)


def _asking_size(cheap: Sequence[CaseSpec]) -> CaseSpec:
    """Return the smallest of some sizes at which rows may differ."""
    for enough in (min, max):
        for spec in cheap:
            if enough(spec.sizes.values(), default=0) >= _ROWS:
                return spec
    return cheap[-1]
