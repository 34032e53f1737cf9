"""The reference: what the delivered model itself gives on the input plan, and gives in float64."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import DeliveryUnsound, HandoffError, first_line
from handoff.infra.engine.budget import is_out_of_memory
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.timing.conditions import digest_conditions, sharing_threads
from handoff.tasks.verify.elements import are_identical
from handoff.tasks.verify.float64 import (
    copy_sharing_tensors,
    flatten_tensors,
    graph_arguments,
    narrowing_casts,
    run_in_float64,
)
from handoff.tasks.verify.inputs.planner import PlannedCase, Planner
from handoff.tasks.verify.inputs.special import NOT_FINITE, ValueKind
from handoff.tasks.verify.messages import ReferenceJob, ReferenceResult
from handoff.tasks.verify.metric.evaluating import run_eager
from handoff.tasks.verify.mha_fastpath import by_definition
from handoff.tasks.verify.undefined_casts import UndefinedCasts

Tensors = tuple[torch.Tensor, ...]

# What eager makes of the evaluation.
EAGER_FILE = "evaluation.pt"

Eager = Callable[..., Any]
Float64 = Callable[[Tensors], tuple[Tensors, int]]
Float64Future = Future[tuple[Tensors, int]]
SubmitFloat64 = Callable[[Tensors], Float64Future]


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
    values: ValueKind = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()
    left: Tensors = ()
    undeclared: tuple[str, ...] = ()

    @property
    def is_served(self) -> bool:
        """Return whether all its values are declared as served, or are as usual as drawn ones."""
        return _is_served(self)


@by_definition()
def run(job: ReferenceJob) -> ReferenceResult:
    """Write the reference outputs of the delivery in `job.staging` to `job.file`."""
    delivery = read_delivery(job.staging)
    eager, make_float64 = reference_functions(delivery, job.reference)
    cases = []
    skipped: list[str] = []

    @contextmanager
    def skipping_failures(planned: PlannedCase) -> Iterator[None]:
        try:
            yield
        except _UndefinedResult as error:
            skipped.append(f"{planned.name}: {error}, and nothing defines the result")
        except Exception as error:
            if planned.values == "drawn":
                if isinstance(error, HandoffError) or is_out_of_memory(error):
                    raise
                raise _failure_within_contract(planned.name, error) from error
            # What the model itself doesn't take can't be compared.
            why = first_line(error, 200)
            skipped.append(f"{planned.name}: the model itself fails: {why}")

    # Compilers are the second that computes beside this.
    with sharing_threads(2), _background_float64(make_float64()) as submit:
        planner = Planner(
            delivery,
            job.plan,
            job.known,
            eager,
            bytes_of=lambda inputs: submit(inputs).result()[1],
            skipped=skipped,
        )
        pending = []
        for planned in planner.inputs():
            with skipping_failures(planned):
                pending.append(_run_case(planned, eager, submit))
                if planner.is_large(planned.inputs):
                    wait([pending[-1].exact])
        _run_remaining(pending, make_float64())
        for unfinished in pending:
            with skipping_failures(unfinished.planned):
                cases.append(unfinished.result())
    job.file.parent.mkdir(parents=True, exist_ok=True)
    save_cases(cases, job.file)
    evaluation = run_eager(delivery, job.file.with_name(EAGER_FILE))
    names = tuple(case.name for case in cases)
    # What a table adds isn't the same wherever the delivery and the recipe are.
    added = set(planner.fault_cases.values())
    plan = _digest_inputs([case for case in cases if case.name not in added])
    asked = {fault: case for fault, case in planner.fault_cases.items() if case in names}
    return ReferenceResult(
        job.file, names, tuple(skipped), plan, digest_conditions(), asked, evaluation
    )


def _failure_within_contract(case: str, error: Exception) -> DeliveryUnsound:
    """Return the refusal of a model that fails where its contract says that it runs."""
    return DeliveryUnsound(
        f"the model itself fails at {case}, which its contract declares",
        expected="a model that runs at every size and on every value that its contract declares",
        got=f"{type(error).__name__}: {first_line(error, 200)}",
        remedy="Declare what it takes (dimensions={NAME: (MIN, MAX)}, ranges={INPUT: (LOW, "
        "HIGH)}), and deliver it again",
    )


class _UndefinedResult(Exception):
    """Nothing defines what the model gives for undeclared inputs; the message says why."""


def _is_served(case: PlannedCase | ReferenceCase) -> bool:
    return not case.undeclared and case.values not in NOT_FINITE


@contextmanager
def _background_float64(float64: Float64) -> Iterator[SubmitFloat64]:
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
class _PendingCase:
    """A case that eager has run, and that is run in float64 or will be."""

    planned: PlannedCase
    outputs: Tensors
    left: Tensors
    exact: Float64Future

    def result(self) -> ReferenceCase:
        """Return the whole case, once it was run; raise what that did."""
        planned = self.planned
        return ReferenceCase(
            planned.name, planned.inputs, self.outputs, self.exact.result()[0], planned.values,
            planned.axes, self.left, planned.undeclared,
        )  # fmt: skip


def _run_remaining(pending: Sequence[_PendingCase], float64: Float64) -> None:
    """Run here, from the last on, what isn't begun yet beside."""
    for case in reversed(pending):
        if not case.exact.cancel():
            return
        case.exact = Future()
        try:
            case.exact.set_result(float64(case.planned.inputs))
        except Exception as error:  # noqa: BLE001 - as one that ran beside
            case.exact.set_exception(error)


def _run_case(planned: PlannedCase, eager: Eager, submit: SubmitFloat64) -> _PendingCase:
    # Copies, because a model may change its inputs in place.
    inputs = tuple(tensor.clone() for tensor in planned.inputs)
    casts = None if _is_served(planned) else UndefinedCasts()
    with torch.no_grad(), casts or nullcontext():
        outputs = tuple(tensor.clone() for tensor in flatten_tensors(eager(*inputs)))
    if casts and casts.first_cast:
        raise _UndefinedResult(
            f"what the model casts ({casts.first_cast}) lies beyond what that type holds"
        )
    left = () if are_identical(inputs, planned.inputs) else inputs
    return _PendingCase(planned, outputs, left, submit(planned.inputs))


def _digest_inputs(cases: Sequence[ReferenceCase]) -> Digest:
    """Return the digest of all names and inputs of these cases, as they were carried out."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(f"{case.name}\n".encode())
        for tensor in case.inputs:
            digest.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return Digest(f"sha256:{digest.hexdigest()}")


def save_cases(cases: Sequence[ReferenceCase], path: Path) -> None:
    """Write cases to `path`, for `load_cases`."""
    torch.save([vars(case) for case in cases], path)


def load_cases(path: Path) -> tuple[ReferenceCase, ...]:
    """Return the cases that `run` wrote to `path`, mapped from the file rather than copied."""
    states = torch.load(path, weights_only=True, mmap=True)
    return tuple(ReferenceCase(**case) for case in states)


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
        return module, lambda: _float64_runner(copy_sharing_tensors(module), lambda inputs: inputs)
    program = load_program(program_file)
    return program.module(), lambda: _float64_runner(
        copy_sharing_tensors(program.graph_module), lambda inputs: graph_arguments(program, inputs)
    )


def _float64_runner(
    module: torch.fx.GraphModule, arguments: Callable[[Tensors], Sequence[torch.Tensor]]
) -> Float64:
    casts: dict[str, torch.dtype] | None = None

    def run(inputs: Tensors) -> tuple[Tensors, int]:
        nonlocal casts
        module_inputs = arguments(inputs)
        if casts is None:
            casts = dict(narrowing_casts(module, module_inputs))
        return run_in_float64(module, module_inputs, casts)

    return run
