"""The reference: what the delivered model itself gives on the input plan, and gives in float64."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from artifacts.digest import Digest
from artifacts.errors import first_line
from artifacts.recipe import VerifyPlan
from artifacts.steps import ReferenceJob, ReferenceResult
from tasks.compare import identical
from tasks.conditions import digest_conditions
from tasks.float64 import flat_tensors, lifted_inputs, run_in_float64
from tasks.intake import LoadedDelivery, read_delivery
from tasks.plan import plan_cases, sizes_text, special_cases
from tasks.programs import load_program
from tasks.special import Values, dynamic_axes
from tasks.threads import half_of_the_threads

Tensors = tuple[torch.Tensor, ...]


# Up to how many bytes of intermediate results a size is run on all kinds of special values.
_CHEAP_BYTES = 2**27

Float64 = Callable[[Tensors], tuple[Tensors, int]]


@dataclass(frozen=True)
class ReferenceCase:
    """One input of the plan, and what eager and float64 make of it.

    `axes` are those of each input that are dynamic, where its values are repeated along them.
    `left` are the inputs as eager leaves them behind; empty where it doesn't touch any.
    """

    name: str
    inputs: Tensors
    eager: Tensors
    float64: Tensors
    values: Values = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()
    left: Tensors = ()


def run(job: ReferenceJob) -> ReferenceResult:
    """Write the reference outputs of the delivery in `job.staging` to `job.file`."""
    delivery = read_delivery(job.staging)
    eager, float64 = _reference_functions(delivery, job.reference)
    cases = []
    skipped: list[str] = []
    with half_of_the_threads():
        for planned in _planned_inputs(delivery, job.plan, float64, skipped):
            try:
                cases.append(_run_case(planned, eager, float64))
            except Exception as error:
                if planned.values == "drawn":
                    raise
                # What the model itself doesn't take can't be compared.
                why = first_line(error, 200)
                skipped.append(f"{planned.name}: the model itself fails: {why}")
    job.file.parent.mkdir(parents=True, exist_ok=True)
    save_cases(cases, job.file)
    names = tuple(case.name for case in cases)
    plan, conditions = _digest_inputs(cases), digest_conditions()
    return ReferenceResult(job.file, names, tuple(skipped), plan, conditions)


@dataclass(frozen=True)
class _Planned:
    """The inputs of a case, before anything has run."""

    name: str
    inputs: Tensors
    values: Values = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()


def _run_case(planned: _Planned, eager: Callable[..., Any], float64: Float64) -> ReferenceCase:
    # Copies, because a model may change its inputs in place.
    given = tuple(tensor.clone() for tensor in planned.inputs)
    with torch.no_grad():
        outputs = tuple(tensor.clone() for tensor in flat_tensors(eager(*given)))
    left = () if identical(given, planned.inputs) else given
    exact, _ = float64(planned.inputs)
    return ReferenceCase(
        planned.name, planned.inputs, outputs, exact, planned.values, planned.axes, left
    )


def _digest_inputs(cases: Sequence[ReferenceCase]) -> Digest:
    """Return the digest of all names and inputs: that of the plan, as it was carried out."""
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


def _reference_functions(
    delivery: LoadedDelivery, program_file: Path | None
) -> tuple[Callable[..., Any], Float64]:
    if program_file is None:
        return delivery.module, lambda inputs: run_in_float64(delivery.module, inputs)
    # A recipe that changes the numbers on purpose has the changed program as its reference. Our
    # own optimize step wrote this file.
    program = load_program(program_file)
    graph = program.graph_module
    return program.module(), lambda inputs: run_in_float64(graph, lifted_inputs(program, inputs))


def _planned_inputs(
    delivery: LoadedDelivery, plan: VerifyPlan, float64: Float64, skipped: list[str]
) -> Iterator[_Planned]:
    """Give the planned draws, special values, and the delivery's examples.

    Sizes that are too large are noted in `skipped`. What a size takes is extrapolated from the
    smallest size, whose intermediate results are counted: they grow with the product of the dynamic
    dimensions for most models.
    """
    signature = delivery.contract.signature
    bytes_per_unit = 0.0
    chosen: Mapping[str, int] = {}
    for spec in plan_cases(signature, plan.seeds):
        inputs = delivery.draw(spec)
        units = math.prod(spec.sizes.values())
        if bytes_per_unit and bytes_per_unit * units > plan.max_bytes:
            if spec.seed == 0:
                needed = bytes_per_unit * units / 2**30
                skipped.append(
                    f"{sizes_text(spec.sizes)}: about {needed:.1f} GiB of intermediate results, "
                    f"more than the plan's {plan.max_bytes / 2**30:.1f}"
                )
            continue
        if not bytes_per_unit and units:
            bytes_per_unit = float64(inputs)[1] / units
        # The largest of the cheap sizes: it has whole vectors and a rest.
        if not chosen or bytes_per_unit * units <= _CHEAP_BYTES:
            chosen = spec.sizes
        yield _Planned(spec.name, inputs)
    for spec in special_cases(signature, chosen):
        axes = tuple(map(dynamic_axes, signature.inputs)) if spec.values == "repeated" else ()
        yield _Planned(spec.name, delivery.draw(spec), spec.values, axes)
    for index, case in enumerate(delivery.cases):
        shapes = zip(signature.inputs, case.inputs, strict=True)
        sizes = signature.measure({spec.name: tuple(tensor.shape) for spec, tensor in shapes})
        yield _Planned(f"{sizes_text(sizes)} example={index}", case.inputs)
