"""Verify: the numeric gate. It ends in accepted, or in refused with every reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import first_line
from handoff.artifacts.serve.archive import EXTERN_KERNELS_FILE
from handoff.tasks.compile.messages import AssumedRange
from handoff.tasks.compile.packages import digest_library, read_kernels
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.probe.call_patterns import (
    Package,
    expanded_inputs,
    other_layouts,
    repeated_calls,
    threaded_calls,
)
from handoff.tasks.probe.emulated import emulated_package
from handoff.tasks.probe.time_limit import TimeLimitedPackage, bytes_of
from handoff.tasks.verify.elements import are_identical
from handoff.tasks.verify.figures import spreads_of
from handoff.tasks.verify.findings import Findings, drawn_cases, yardsticks_of
from handoff.tasks.verify.loading import (
    PACKAGE,
    SHARED_LIBRARY,
    Tensors,
    call_from_host,
    clone_inputs,
    device_of,
    open_package,
    open_shared_library,
)
from handoff.tasks.verify.messages import VerifyJob, VerifyResult
from handoff.tasks.verify.metric.evaluating import evaluate
from handoff.tasks.verify.mha_fastpath import by_definition
from handoff.tasks.verify.reference import ReferenceCase, load_cases
from handoff.tasks.verify.rounded_program import RoundedProgram
from handoff.tasks.verify.torch_versions.client import open_in_other_torch

# So many of the smallest cases are called in other manners, and by the second loader.
_FEW_CASES = 2
# So many sizes are compared whatever time that takes.
_LEAST_SIZES = 2
# So often each thread calls with each of the few cases.
_ROUNDS, _MORE_ROUNDS = 2, 4


@by_definition()
def run(job: VerifyJob) -> VerifyResult:
    """Compare `model.so` and `model.pt2` in `job.folder` with the reference.

    The shared library in the package has to be the bare one, byte for byte, and torch's loader of
    packages to give the same bits for a few cases. The library's calls are made again, from several
    threads, and with inputs that are laid out differently: what it takes has to be computed right.
    """
    cases, rounded = load_cases(job.reference), _rounded_program(job)
    if rounded:
        cases = rounded.with_program_outputs(cases)
    findings = Findings(
        job, yardsticks_of(cases), model_of(job), rounded, reasons=[*_check_libraries(job)]
    )
    with _open(job, SHARED_LIBRARY) as library:
        outputs, left_out = _compare_all(findings, library, cases)
        cases = tuple(case for case in cases if case.name not in left_out)
        if not findings.reasons:
            _try_call_patterns(findings, library, cases, outputs)
        findings.reasons += _check_dtype_guard(library, cases)
        metric = _measure_metric(findings, library)
    # Its copy of the weights goes with it, before another comes.
    del library
    with _open(job, PACKAGE) as package:
        _compare_package(findings, package, (drawn_cases(cases) or cases)[:_FEW_CASES], outputs)
    findings.reasons += _check_assumptions(job.assumed, cases)
    if not cases:
        findings.reasons.append("no case of the input plan could be compared")
    findings.refuse_decisions()
    findings.note_vacuous_tolerances(drawn_cases(cases))
    findings.note_unjudged_elements()
    findings.note_atomic_sums()
    blind = _find_blind_outputs(cases)
    findings.notes += [f"output {index} is {what} at every input" for index, what in blind]
    no_time = tuple(
        f"{name}: no time for it under emulation (the recipe's verify.emulated_seconds)"
        for name in left_out
    )
    return VerifyResult(
        tuple(findings.deviations), tuple(findings.reasons), tuple(findings.notes),
        tuple(index for index, _ in blind), spreads_of(findings.spreads.values()),
        findings.incomparable_outputs(), metric, no_time,
    )  # fmt: skip


@contextmanager
def _open(job: VerifyJob, file: str) -> Iterator[Package]:
    """Open one of the two packages until the body ends, where its processor is: here, or nowhere.

    What is for another processor is called under emulation, and what is tried with another torch
    in a process of that one's.
    """
    if job.torch is not None:
        with open_in_other_torch(job.torch, job.folder / file) as package:
            yield package
        return
    if job.calls is not None:
        with emulated_package(job.calls, file) as package:
            yield package
        return
    device = device_of(job.target)
    opening = open_package if file == PACKAGE else open_shared_library
    yield call_from_host(opening(job.folder / file, device), device)


def model_of(job: VerifyJob) -> Callable[[], Callable[..., object]] | None:
    """Return what makes the reference's own model, once it is asked for."""
    if job.program is None and job.staging is None:
        return None

    @cache
    def model() -> Callable[..., object]:
        if job.program is not None:
            return load_program(job.program).module(check_guards=False)
        assert job.staging is not None
        return read_delivery(job.staging).module

    return model


def _rounded_program(job: VerifyJob) -> RoundedProgram | None:
    """Return the program whose output the metric judges; None where a tolerance judges all."""
    if job.rounded is None or job.staging is None:
        return None
    index = read_contract(job.staging).metric_output_index(len(job.outputs))
    return None if index is None else RoundedProgram(job.rounded, index)


def _measure_metric(findings: Findings, library: Package) -> MeasuredMetric | None:
    """Compute the metric of the delivery's evaluation; refuse what loses more than was agreed.

    Where nothing was rounded, the tolerance is kept, and too few samples are no reason.
    """
    job = findings.job
    if job.evaluation is None or job.staging is None:
        return None
    try:
        measured = evaluate(job.staging, job.evaluation, library, job.recipe)
    except RuntimeError as error:
        findings.reasons.append(f"evaluation: the package failed: {first_line(error)}")
        return None
    decides = findings.rounded is not None
    measured = replace(measured, decides=decides)
    is_open = measured.standing == "not known" and decides
    if measured.standing == "broken" or is_open:
        findings.reasons.append(f"metric: {measured.text}")
    else:
        findings.notes.append(measured.text)
    if decides:
        findings.notes.append(
            f"{measured.output} is judged by {measured.name} instead of a tolerance, and compared "
            "with what the rounded program gives, to find what the compiler gets wrong"
        )
    return measured


def _compare_all(
    findings: Findings, library: Package, cases: Sequence[ReferenceCase]
) -> tuple[dict[str, Tensors], list[str]]:
    """Compare the library's outputs with every case's reference; return what it gave.

    Beside it are the names of those that there was no time for: under emulation it is limited.
    """
    outputs: dict[str, Tensors] = {}
    left_out: list[str] = []
    limit_s = math.inf
    if findings.job.calls is not None:
        limit_s = findings.job.recipe.verify.emulated_seconds
        # Further sizes show more than further values of one.
        cases = sorted(cases, key=lambda case: (case.values != "drawn", bytes_of(case.inputs)))
    timed = TimeLimitedPackage(library, limit_s)
    sizes: set[int] = set()
    for case in cases:
        size = bytes_of(case.inputs)
        if not timed.has_time_for(case.inputs) and (len(sizes) >= _LEAST_SIZES or size in sizes):
            left_out.append(case.name)
            continue
        sizes.add(size)
        try:
            inputs = clone_inputs(case.inputs)
            outputs[case.name] = timed(inputs)
        except RuntimeError as error:
            text = f"{case.name}: the package failed: {first_line(error)}"
            # An error is no wrong number, where nobody has said that this is served.
            (findings.reasons if case.is_served else findings.notes).append(text)
            continue
        findings.compare(case.name, case, outputs[case.name])
        findings.reasons += _check_inputs_unchanged(case, inputs)
    return outputs, left_out


def _compare_package(
    findings: Findings,
    package: Package,
    cases: Sequence[ReferenceCase],
    outputs: dict[str, Tensors],
) -> None:
    """Call torch's loader of packages: it has to give what the bare library gave."""
    for case in cases:
        if case.name not in outputs:
            continue
        try:
            again = package(clone_inputs(case.inputs))
        except RuntimeError as error:
            findings.reasons.append(f"{case.name}: the package failed: {first_line(error)}")
            continue
        if not are_identical(outputs[case.name], again):
            findings.judge_difference(
                case, "in model.pt2", again, "model.pt2 and model.so give different bits"
            )


def _check_inputs_unchanged(case: ReferenceCase, inputs: Tensors) -> Iterator[str]:
    """Give a reason for each input that the package leaves behind otherwise than eager does."""
    for index, (got, before) in enumerate(zip(inputs, case.inputs, strict=True)):
        want = case.left[index] if case.left else before
        # Most are left as they were, which is seen at once.
        if torch.equal(got, want):
            continue
        if not torch.allclose(got, want, rtol=1e-4, atol=1e-6, equal_nan=True):
            yield f"{case.name}: the package writes something else to input {index} than eager does"


def _try_call_patterns(
    findings: Findings,
    library: Package,
    cases: Sequence[ReferenceCase],
    first_outputs: dict[str, Tensors],
) -> None:
    """Call the package in other manners: what it gives has to be right, or an error."""
    few_cases = [(case, first_outputs[case.name]) for case in drawn_cases(cases)[:_FEW_CASES]]
    for case, manner, outputs in repeated_calls(library, few_cases):
        findings.judge_difference(case, manner, outputs, f"{manner}, the package gives other bits")
    # What isn't seen by its bits has to show in numbers, and is given more occasions to.
    rounds = _MORE_ROUNDS if findings.job.atomic_sums else _ROUNDS
    for case, manner, outputs in threaded_calls(library, few_cases, rounds):
        findings.judge_difference(case, manner, outputs, f"{manner}, the package gives other bits")
    refused = set()
    for case, name, inputs in _layout_variants(cases):
        try:
            outputs = library(inputs)
        except RuntimeError:
            refused.add(name.rpartition(" ")[2])
        else:
            findings.compare(name, case, outputs)
    if refused:
        findings.notes.append(
            f"inputs in other memory layouts ({', '.join(sorted(refused))}) are refused with an "
            'error; load(..., layouts="copy") copies them instead'
        )


def _layout_variants(
    cases: Sequence[ReferenceCase],
) -> Iterator[tuple[ReferenceCase, str, Tensors]]:
    repeated = [case for case in cases if case.values == "repeated"]
    for case in repeated:
        yield case, f"{case.name}, expanded", expanded_inputs(case)
    drawn = drawn_cases(cases)
    # Not the smallest: strides of axes of one element say nothing.
    for case in drawn[1:2] or drawn[:1]:
        for name, inputs in other_layouts(case):
            yield case, name, inputs


def _find_blind_outputs(cases: Sequence[ReferenceCase]) -> list[tuple[int, str]]:
    """Return the outputs that a wrong package may give, too: one number in every case, or nothing.

    Each comes with what it is: the number, or `empty` where it has no element in any case.
    """
    drawn = drawn_cases(cases)
    blind = []
    for index in range(min((len(case.float64) for case in drawn), default=0)):
        if not any(case.eager[index].numel() for case in drawn):
            blind.append((index, "empty"))
            continue
        constant = _constant_value([case.float64[index] for case in drawn])
        # What rounding makes vary in eager alone, a wrong package makes vary otherwise.
        if (
            constant is not None
            and _constant_value([case.eager[index] for case in drawn]) is not None
        ):
            blind.append((index, f"{constant:g}"))
    return blind


def _constant_value(outputs: Sequence[torch.Tensor]) -> float | None:
    """Return the number that all elements of all tensors are; None where they differ."""
    values = [output.double().flatten() for output in outputs if output.numel()]
    if not values:
        return None
    ends = torch.cat([torch.stack([v.min(), v.max()]) for v in values])
    return float(ends[0]) if bool((ends == ends[0]).all()) else None


def _check_assumptions(
    assumed: tuple[AssumedRange, ...], cases: tuple[ReferenceCase, ...]
) -> list[str]:
    """Return a reason for each range that the compiler assumed and that no case went beyond."""
    reasons = []
    for range_ in assumed:
        sizes = {case.inputs[range_.place].shape[range_.axis] for case in cases}
        if all(range_.low <= size <= range_.high for size in sizes):
            reasons.append(
                f"the compiler assumed input {range_.place} to have {range_.low} to {range_.high} "
                f"in axis {range_.axis}, and no size beyond that was compared"
            )
    return reasons


def _check_dtype_guard(library: Package, cases: tuple[ReferenceCase, ...]) -> list[str]:
    """Return a reason where the package runs on another dtype than the declared one.

    The other one is wider, so that a package which doesn't look reads no further than it should.
    """
    if not cases or not cases[0].inputs:
        return []
    first, *rest = clone_inputs(cases[0].inputs)
    other = torch.int64 if first.dtype is torch.float64 else torch.float64
    try:
        library((first.to(other), *rest))
    except RuntimeError:
        return []
    return ["the package takes an input of another dtype without a word"]


def _check_libraries(job: VerifyJob) -> Iterator[str]:
    """Give a reason if `model.so` is not the file that was compiled, or `model.pt2` has another."""
    digest = digest_file(job.folder / SHARED_LIBRARY)
    if job.library not in ("", digest):
        yield f"model.so is not the file that was compiled: {digest}, and not {job.library}"
    packaged = digest_library(job.folder / PACKAGE)
    if packaged != digest:
        yield f"model.pt2 holds another library than model.so: {packaged}, and not {digest}"
    kernels = job.folder / EXTERN_KERNELS_FILE
    if read_kernels(job.folder / PACKAGE) != (kernels.read_bytes() if kernels.exists() else None):
        yield "model.pt2 has other operators called by name than model.json"
