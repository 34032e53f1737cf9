"""Verify: the numeric blessing. A package is accepted, or refused with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from artifacts.digest import digest_file
from artifacts.steps import AssumedRange, VerifyJob, VerifyResult
from artifacts.tolerance import Deviation
from tasks.compare import compare, same_elements, typical_error
from tasks.loading import PACKAGE, SHARED_LIBRARY, Tensors, open_package, open_shared_library
from tasks.reference import ReferenceCase, load_cases


def run(job: VerifyJob) -> VerifyResult:
    """Compare the packages in `job.folder` with every case of the reference.

    The `.so` is compared with eager and float64; the `.pt2` has to give the same bits as the `.so`
    that it holds. A case that can't be run is a reason, and so is a comparison that could not
    have failed, because every output of every case is zero or not finite.
    """
    cases = load_cases(job.reference)
    library = open_shared_library(job.folder / SHARED_LIBRARY)
    package = open_package(job.folder / PACKAGE)
    deviations: list[Deviation] = []
    reasons = _other_library(job)
    typical = _typical_errors(cases)
    for case in cases:
        try:
            # Copies, because a model may change its inputs in place.
            outputs = library(_copies(case.inputs))
            again = package(_copies(case.inputs))
        except RuntimeError as error:
            reasons.append(f"{case.name}: the package failed: {_first_line(error)}")
            continue
        if not _identical(outputs, again):
            reasons.append(f"{case.name}: model.pt2 and model.so give different bits")
        compared = _compare_case(case, outputs, job, typical)
        deviations += compared[0]
        reasons += compared[1]
    reasons += _unchecked_inputs(library, cases)
    reasons += [reason for range_ in job.assumed for reason in _not_compared_beyond(range_, cases)]
    if not cases:
        reasons.append("no case of the input plan could be compared")
    elif deviations and not any(d.rms > 0 for d in deviations):
        reasons.append(
            "every output of every case is exactly zero in float64, so no comparison could fail"
        )
    return VerifyResult(tuple(deviations), tuple(reasons))


def _other_library(job: VerifyJob) -> list[str]:
    if job.library and digest_file(job.folder / SHARED_LIBRARY) != job.library:
        return ["model.so is not the one that was compiled"]
    return []


def _not_compared_beyond(assumed: AssumedRange, cases: tuple[ReferenceCase, ...]) -> list[str]:
    """Return a reason where the compiler assumed a range and nothing was compared beyond it."""
    sizes = [case.inputs[assumed.place].shape[assumed.axis] for case in cases]
    if any(not assumed.low <= size <= assumed.high for size in sizes):
        return []
    return [
        f"the compiler assumed axis {assumed.axis} of input {assumed.place} to be {assumed.low} to "
        f"{assumed.high}, less than was declared, and no size beyond that was compared"
    ]


def _unchecked_inputs(
    library: Callable[[Tensors], Tensors], cases: tuple[ReferenceCase, ...]
) -> list[str]:
    """Return a reason where the package runs on another dtype than the declared one.

    The other one is wider, so that a package which doesn't look reads no further than it should.
    """
    if not cases or not cases[0].inputs:
        return []
    first, *rest = _copies(cases[0].inputs)
    other = torch.int64 if first.dtype is torch.float64 else torch.float64
    try:
        library((first.to(other), *rest))
    except RuntimeError:
        return []
    return ["the package takes an input of another dtype without a word"]


def _typical_errors(cases: tuple[ReferenceCase, ...]) -> list[float]:
    """Return eager's relative error on each output, over all cases."""
    count = min((len(case.eager) for case in cases), default=0)
    return [
        typical_error((case.eager[index], case.float64[index]) for case in cases)
        for index in range(count)
    ]


def _compare_case(
    case: ReferenceCase, outputs: Tensors, job: VerifyJob, typical: Sequence[float]
) -> tuple[list[Deviation], list[str]]:
    if len(outputs) != len(case.eager):
        return [], [f"{case.name}: expected {len(case.eager)} outputs, got {len(outputs)}"]
    found = []
    for index, (got, want, exact) in enumerate(zip(outputs, case.eager, case.float64, strict=True)):
        agreed = job.recipe.tolerance_for(str(want.dtype).removeprefix("torch."))
        found.append(
            compare(got, want, exact, agreed, output=index, case=case.name, typical=typical[index])
        )
    reasons = [f"{d.case}, output {d.output}: {reason}" for d in found for reason in d.reasons]
    return found, reasons


def _identical(left: Tensors, right: Tensors) -> bool:
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(same_elements(a, b).all())
        for a, b in zip(left, right, strict=True)
    )


def _copies(inputs: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in inputs)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
