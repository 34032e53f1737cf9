"""Verify: the numeric blessing. It ends in accepted, or in refused with every reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from artifacts.digest import digest_file
from artifacts.errors import first_line
from artifacts.extern_kernels import EXTERN_KERNELS_FILE
from artifacts.steps import AssumedRange, VerifyJob, VerifyResult
from artifacts.tolerance import Deviation
from tasks.compare import Typical, compare, identical, typical_error
from tasks.compiling.packages import digest_library, read_kernels
from tasks.loading import (
    PACKAGE,
    SHARED_LIBRARY,
    Tensors,
    copies,
    device_of,
    from_the_host,
    open_package,
    open_shared_library,
)
from tasks.manners import (
    Package,
    expanded_inputs,
    other_layouts,
    repeated_calls,
    threaded_calls,
)
from tasks.reference import ReferenceCase, load_cases
from tasks.spread import OUTPUTS_COUNTED, SpreadCount, spreads_of

_AGREE = 'if that is of no account, agree on propagation = "note" under [verify] in the recipe'

# So many of the smallest cases are called in other manners, and by the second loader.
_FEW = 2


@dataclass
class _Findings:
    """What has been found so far."""

    job: VerifyJob
    typical: Sequence[Typical]
    deviations: list[Deviation] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spreads: dict[int, SpreadCount] = field(default_factory=dict)

    def compare(self, name: str, case: ReferenceCase, outputs: Tensors) -> None:
        """Compare the outputs with the case's reference, under a name of their own."""
        if len(outputs) != len(case.eager):
            self.reasons.append(f"{name}: expected {len(case.eager)} outputs, got {len(outputs)}")
            return
        for index, got in enumerate(outputs):
            want, exact = case.eager[index], case.float64[index]
            agreed = self.job.recipe.tolerance_for(
                str(want.dtype).removeprefix("torch."), self._name(index), self.job.target
            )
            found = compare(
                got, want, exact, agreed, output=index, case=name,
                typical=self.typical[index], values=case.values,
            )  # fmt: skip
            is_special = case.values != "drawn" or name != case.name
            if not is_special and index < OUTPUTS_COUNTED:
                self.spreads.setdefault(index, SpreadCount(index)).add(got, want, exact)
            told = [f"{name}, output {index}: {reason}" for reason in found.reasons]
            if told and self._is_of_no_account(case, want):
                self.notes += told
                found, told = replace(found, reasons=()), []
            elif case.values in ("nan", "infinite"):
                told = [f"{reason} ({_AGREE})" for reason in told]
            self.deviations.append(replace(found, special=is_special))
            self.reasons += told

    def _is_of_no_account(self, case: ReferenceCase, want: torch.Tensor) -> bool:
        """Tell whether a rule that is broken there is noted only.

        Decisions of half-precision numbers hang on ties, and special values make many of those.
        """
        if case.values in ("nan", "infinite") and self.job.recipe.verify.propagation == "note":
            return True
        is_half = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in case.inputs)
        return case.values != "drawn" and is_half and not want.is_floating_point()

    def _name(self, index: int) -> str:
        return self.job.outputs[index] if index < len(self.job.outputs) else ""


def run(job: VerifyJob) -> VerifyResult:
    """Compare `model.so` and `model.pt2` in `job.folder` with the reference.

    The shared library in the package has to be the bare one, byte for byte, and torch's loader of
    packages to give the same bits for a few cases. The library's calls are made again, from several
    threads, and with inputs that are laid out differently: what it takes has to be computed right.
    """
    cases = load_cases(job.reference)
    device = device_of(job.target)
    found = _Findings(job, _typical_errors(cases), reasons=[*_other_libraries(job)])
    library = from_the_host(open_shared_library(job.folder / SHARED_LIBRARY, device), device)
    given = _compare_all(found, library, cases)
    if not found.reasons:
        _try_manners(found, library, cases, given)
    found.reasons += _unchecked_inputs(library, cases)
    # Its copy of the weights goes with it, before another comes.
    del library
    package = from_the_host(open_package(job.folder / PACKAGE, device), device)
    found.reasons += _other_bits(package, (_drawn(cases) or cases)[:_FEW], given)
    found.reasons += _beyond_assumptions(job.assumed, cases)
    if not cases:
        found.reasons.append("no case of the input plan could be compared")
    blind = _blind_outputs(cases)
    found.notes += [f"output {index} is {value:g} at every input" for index, value in blind]
    return VerifyResult(
        tuple(found.deviations), tuple(found.reasons), tuple(found.notes),
        tuple(index for index, _ in blind), spreads_of(found.spreads.values()),
    )  # fmt: skip


def _compare_all(
    found: _Findings, library: Package, cases: Sequence[ReferenceCase]
) -> dict[str, Tensors]:
    """Compare the library's outputs with every case's reference; return what it gave."""
    gave = {}
    for case in cases:
        try:
            given = copies(case.inputs)
            gave[case.name] = library(given)
        except RuntimeError as error:
            found.reasons.append(f"{case.name}: the package failed: {first_line(error)}")
            continue
        found.compare(case.name, case, gave[case.name])
        found.reasons += _inputs_changed(case, given)
    return gave


def _other_bits(
    package: Package, cases: Sequence[ReferenceCase], gave: dict[str, Tensors]
) -> Iterator[str]:
    """Give a reason for each case for which the package gives other bits than its library gave."""
    for case in cases:
        if case.name not in gave:
            continue
        try:
            again = package(copies(case.inputs))
        except RuntimeError as error:
            yield f"{case.name}: the package failed: {first_line(error)}"
            continue
        if not identical(gave[case.name], again):
            yield f"{case.name}: model.pt2 and model.so give different bits"


def _inputs_changed(case: ReferenceCase, given: Tensors) -> Iterator[str]:
    """Give a reason for each input that the package leaves behind otherwise than eager does."""
    for place, (got, before) in enumerate(zip(given, case.inputs, strict=True)):
        want = case.left[place] if case.left else before
        # Most are left as they were, which is seen at once.
        if torch.equal(got, want):
            continue
        if not torch.allclose(got, want, rtol=1e-4, atol=1e-6, equal_nan=True):
            yield f"{case.name}: the package writes something else to input {place} than eager does"


def _try_manners(
    found: _Findings, library: Package, cases: Sequence[ReferenceCase], gave: dict[str, Tensors]
) -> None:
    """Call the package in other manners: what it gives has to be right, or an error."""
    few = [(case, gave[case.name]) for case in _drawn(cases)[:_FEW]]
    found.reasons += repeated_calls(library, few)
    found.reasons += threaded_calls(library, few)
    refused = set()
    for case, name, inputs in _laid_out_differently(cases):
        try:
            outputs = library(inputs)
        except RuntimeError:
            refused.add(name.rpartition(" ")[2])
        else:
            found.compare(name, case, outputs)
    if refused:
        found.notes.append(
            f"inputs that are {', '.join(sorted(refused))} are refused with an error"
        )


def _laid_out_differently(
    cases: Sequence[ReferenceCase],
) -> Iterator[tuple[ReferenceCase, str, Tensors]]:
    several = [case for case in cases if case.values == "repeated"]
    for case in several:
        yield case, f"{case.name}, expanded", expanded_inputs(case)
    drawn = _drawn(cases)
    # Not the smallest: strides of axes of one element say nothing.
    for case in drawn[1:2] or drawn[:1]:
        for name, inputs in other_layouts(case):
            yield case, name, inputs


def _drawn(cases: Sequence[ReferenceCase]) -> list[ReferenceCase]:
    """Return the cases of usual values."""
    return [case for case in cases if case.values == "drawn"]


def _typical_errors(cases: Sequence[ReferenceCase]) -> list[Typical]:
    """Return eager's error on each output, over all cases that aren't special."""
    drawn = _drawn(cases) or list(cases)
    count = min((len(case.eager) for case in cases), default=0)
    return [
        typical_error((case.eager[index], case.float64[index]) for case in drawn)
        for index in range(count)
    ]


def _blind_outputs(cases: Sequence[ReferenceCase]) -> list[tuple[int, float]]:
    """Return the outputs that are one number in every case, which a wrong package may give, too."""
    drawn = _drawn(cases)
    blind = []
    for index in range(min((len(case.float64) for case in drawn), default=0)):
        values = [case.float64[index].double().flatten() for case in drawn]
        whole = torch.cat([torch.stack([v.min(), v.max()]) for v in values if v.numel()] or values)
        if whole.numel() and bool((whole == whole[0]).all()):
            blind.append((index, float(whole[0])))
    return blind


def _beyond_assumptions(
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


def _unchecked_inputs(library: Package, cases: tuple[ReferenceCase, ...]) -> list[str]:
    """Return a reason where the package runs on another dtype than the declared one.

    The other one is wider, so that a package which doesn't look reads no further than it should.
    """
    if not cases or not cases[0].inputs:
        return []
    first, *rest = copies(cases[0].inputs)
    other = torch.int64 if first.dtype is torch.float64 else torch.float64
    try:
        library((first.to(other), *rest))
    except RuntimeError:
        return []
    return ["the package takes an input of another dtype without a word"]


def _other_libraries(job: VerifyJob) -> Iterator[str]:
    """Give a reason if `model.so` is not the file that was compiled, or `model.pt2` has another."""
    found = digest_file(job.folder / SHARED_LIBRARY)
    if job.library not in ("", found):
        yield f"model.so is not the file that was compiled: {found}, and not {job.library}"
    inside = digest_library(job.folder / PACKAGE)
    if inside != found:
        yield f"model.pt2 holds another library than model.so: {inside}, and not {found}"
    kernels = job.folder / EXTERN_KERNELS_FILE
    if read_kernels(job.folder / PACKAGE) != (kernels.read_bytes() if kernels.exists() else None):
        yield "model.pt2 has other operators called by name than model.json"
