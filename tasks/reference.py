"""The reference: what the delivered model itself gives on the input plan, and gives in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from artifacts.recipe import VerifyPlan
from artifacts.steps import ReferenceJob, ReferenceResult
from tasks.float64 import flat_tensors, lifted_inputs, run_in_float64
from tasks.intake import LoadedDelivery, read_delivery
from tasks.plan import plan_cases
from tasks.programs import load_program
from tasks.threads import half_of_the_threads

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class ReferenceCase:
    """One input of the plan, and what eager and float64 make of it."""

    name: str
    inputs: Tensors
    eager: Tensors
    float64: Tensors


def run(job: ReferenceJob) -> ReferenceResult:
    """Write the reference outputs of the delivery in `job.staging` to `job.file`."""
    delivery = read_delivery(job.staging)
    eager, float64 = _reference_functions(delivery, job.reference)
    cases = []
    skipped: list[str] = []
    with half_of_the_threads():
        for name, inputs in _planned_inputs(delivery, job.plan, float64, skipped):
            with torch.no_grad():
                # A copy, because a model may change its inputs in place.
                outputs = flat_tensors(eager(*[tensor.clone() for tensor in inputs]))
            exact, _ = float64(inputs)
            cases.append(ReferenceCase(name, inputs, outputs, exact))
    job.file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([vars(case) for case in cases], job.file)
    return ReferenceResult(job.file, tuple(case.name for case in cases), tuple(skipped))


def load_cases(path: Path) -> tuple[ReferenceCase, ...]:
    """Return the cases that `run` wrote to `path`, mapped from the file rather than copied."""
    plain = torch.load(path, weights_only=True, mmap=True)
    return tuple(ReferenceCase(**case) for case in plain)


Float64 = Callable[[Tensors], tuple[Tensors, int]]


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
) -> Iterator[tuple[str, Tensors]]:
    """Give the delivery's examples and the planned draws; note in `skipped` what is too large.

    What a size takes is extrapolated from the smallest size, whose intermediate results are
    counted: they grow with the product of the dynamic dimensions for most models.
    """
    signature = delivery.contract.signature
    bytes_per_unit = 0.0
    for spec in plan_cases(signature, plan.seeds):
        inputs = delivery.draw(spec)
        units = math.prod(spec.sizes.values())
        if bytes_per_unit and bytes_per_unit * units > plan.max_bytes:
            if spec.seed == 0:
                needed = bytes_per_unit * units / 2**30
                skipped.append(
                    f"{_sizes_text(spec.sizes)}: about {needed:.1f} GiB of intermediate results, "
                    f"more than the plan's {plan.max_bytes / 2**30:.1f}"
                )
            continue
        if not bytes_per_unit and units:
            bytes_per_unit = float64(inputs)[1] / units
        yield spec.name, inputs
    for index, case in enumerate(delivery.cases):
        yield f"example {index}", case.inputs


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())
