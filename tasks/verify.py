"""Verify: the numeric blessing. It ends in accepted, or in refused with every reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from artifacts.digest import digest_file
from artifacts.errors import first_line
from artifacts.extern_kernels import EXTERN_KERNELS_FILE
from artifacts.steps import AssumedRange, VerifyJob, VerifyResult
from artifacts.tolerance import Deviation, Tolerance
from tasks.compare import (
    Typical,
    compare,
    decided_otherwise,
    is_decision,
    typical_error,
)
from tasks.compiling.packages import digest_library, read_kernels
from tasks.conditioning import Conditioning
from tasks.elements import (
    FEWEST_RUNS,
    GROSS,
    MOST_AT_STEPS,
    MOST_INCOMPARABLE,
    Moves,
    identical,
)
from tasks.intake import read_delivery
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
from tasks.programs import load_program
from tasks.reference import ReferenceCase, load_cases
from tasks.scale import Scale, find_scale
from tasks.special import NOT_FINITE
from tasks.spread import OUTPUTS_COUNTED, SpreadCount, spreads_of

_AGREE = 'if that is of no account, agree on propagation = "note" under [verify] in the recipe'

# So many of the smallest cases are called in other manners, and by the second loader.
_FEW = 2
# So often each thread calls with each of the few cases.
_ROUNDS, _MORE_ROUNDS = 2, 4
# After so many wrong cases nothing more is asked of how well conditioned the others are.
_WRONG_ENOUGH = 4


@dataclass
class _Findings:
    """What has been found so far."""

    job: VerifyJob
    yardsticks: Sequence[_Yardstick]
    model: Callable[[], Callable[..., object]] | None = None
    deviations: list[Deviation] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spreads: dict[int, SpreadCount] = field(default_factory=dict)
    wrong: int = 0
    conditioned: dict[str, Conditioning] = field(default_factory=dict)

    def compare(self, name: str, case: ReferenceCase, outputs: Tensors) -> None:
        """Compare the outputs with the case's reference, under a name of their own."""
        if len(outputs) != len(case.eager):
            self.reasons.append(f"{name}: expected {len(case.eager)} outputs, got {len(outputs)}")
            return
        before = len(self.reasons)
        for index, got in enumerate(outputs):
            want, exact = case.eager[index], case.float64[index]
            is_special = case.values != "drawn" or name != case.name
            if not is_special and index < OUTPUTS_COUNTED:
                self.spreads.setdefault(index, SpreadCount(index)).add(got, want, exact)
            found = self._judge(name, case, index, got)
            told = [f"{name}, output {index}: {reason}" for reason in found.reasons]
            if told and case.values in NOT_FINITE:
                if self.job.recipe.verify.propagation == "note":
                    self.notes += told
                    found, told = replace(found, reasons=()), []
                else:
                    told = [f"{reason} ({_AGREE})" for reason in told]
            elif told and case.undeclared:
                told = [f"{reason}. {_declare(case)}" for reason in told]
            self.deviations.append(replace(found, special=is_special))
            self.reasons += told
        self.wrong += len(self.reasons) > before

    def differs(self, case: ReferenceCase, manner: str, outputs: Tensors, what: str) -> None:
        """Judge what a further call, made in a `manner`, gave in other bits: `what` refuses it.

        Where the package's own code adds in an order that threads decide, its numbers are judged
        like any others instead: they have to be as right as those of the first call.
        """
        if self.job.atomic_sums:
            self.compare(f"{case.name}, {manner}", case, outputs)
        elif (reason := f"{case.name}: {what}") not in self.reasons:
            self.reasons.append(reason)

    def tell_atomic_sums(self) -> None:
        """Note that the package isn't repeatable bit for bit, and why, if its code is so."""
        if names := self.job.atomic_sums:
            more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
            self.notes.append(
                "the package isn't repeatable bit for bit: its threads add floating-point numbers "
                f"to the same places in any order (in {', '.join(names[:_FEW])}{more}), and its "
                "further calls were judged by their numbers"
            )

    def _judge(self, name: str, case: ReferenceCase, index: int, got: torch.Tensor) -> Deviation:
        want, yardstick = case.eager[index], self.yardsticks[index]
        agreed = self.job.recipe.tolerance_for(
            str(want.dtype).removeprefix("torch."), self._name(index), self.job.target
        )

        def judge(tolerance: Tolerance, moved: Moves | None) -> Deviation:
            return compare(
                got, want, case.float64[index], tolerance, output=index, case=name,
                typical=yardstick.typical, scale=yardstick.scale, values=case.values,
                moved=moved, noise=yardstick.noise,
            )  # fmt: skip

        asks = self._moved(case, index)
        if not case.undeclared:
            return judge(agreed, asks)
        # What isn't declared as served can't refuse by its precision what all that is allows.
        found = judge(agreed, None)
        if not found.reasons:
            return found
        loose = judge(replace(agreed, atol=GROSS * agreed.atol, rtol=GROSS * agreed.rtol), asks)
        if loose.reasons:
            return judge(agreed, asks)
        told = f"{name}, output {index}: {found.reasons[0]}"
        self.notes.append(f"{told}, which refuses nothing: nobody declared it. {_declare(case)}")
        return loose

    def _moved(self, case: ReferenceCase, index: int) -> Moves | None:
        """Return what tells how far rounding moves an output; None where there is no model."""
        if self.model is None:
            return None
        model, most = self.model, FEWEST_RUNS if self.wrong >= _WRONG_ENOUGH else math.inf

        def moved(runs: int) -> torch.Tensor:
            # Only now is the model read: most packages never ask.
            if case.name not in self.conditioned:
                self.conditioned[case.name] = Conditioning(
                    model(), case.inputs, case.eager, case.name
                )
            return self.conditioned[case.name].moved(index, int(min(runs, most)))

        return moved

    def _name(self, index: int) -> str:
        return self.job.outputs[index] if index < len(self.job.outputs) else ""

    def refuse_decisions(self) -> None:
        """Refuse outputs too many of whose decisions are others than eager's, over all cases."""
        for index in range(len(self.yardsticks)):
            own = [
                d for d in self.deviations if d.output == index and not d.special and is_decision(d)
            ]
            at_step, elements = sum(d.at_step for d in own), sum(d.elements for d in own)
            if at_step <= MOST_AT_STEPS * elements or any(d.reasons for d in own):
                continue
            worst = max(own, key=lambda one: one.at_step)
            reason = decided_otherwise(at_step, elements)
            place = self.deviations.index(worst)
            self.deviations[place] = replace(worst, reasons=(reason,))
            self.reasons.append(f"{worst.case} and others, output {index}: {reason}")

    def not_comparable(self) -> tuple[int, ...]:
        """Return the outputs too many of whose elements can't be compared."""
        found = []
        for index in range(len(self.yardsticks)):
            own = [d for d in self.deviations if d.output == index and not d.special]
            elements = sum(d.elements for d in own)
            if sum(d.incomparable for d in own) > MOST_INCOMPARABLE * elements:
                found.append(index)
        return tuple(found)

    def tell_set_aside(self) -> None:
        """Note how many elements weren't judged, and why, output by output."""
        for index in range(len(self.yardsticks)):
            for where, own in (
                ("", [d for d in self.deviations if d.output == index and not d.special]),
                (" of special inputs",
                 [d for d in self.deviations if d.output == index and d.special]),
            ):  # fmt: skip
                elements = sum(d.elements for d in own)
                at_step, lost = sum(d.at_step for d in own), sum(d.incomparable for d in own)
                if at_step:
                    self.notes.append(
                        f"output {index}: {at_step} of {elements} elements{where} are others than "
                        "in eager, by a step that rounding alone decides"
                    )
                if lost:
                    self.notes.append(
                        f"output {index}: {lost} of {elements} elements{where} "
                        f"({lost / elements:.1%}) are not comparable: rounding alone moves them by "
                        "about their own size"
                    )


def _declare(case: ReferenceCase) -> str:
    """Return how to have a case left out, or judged as what is served."""
    names = ", ".join(case.undeclared)
    return (
        f"Nobody has declared which values of {names} are served: declare them (ranges in the "
        "factory, low and high in delivery.toml), and no others are asked"
    )


@dataclass(frozen=True)
class _Yardstick:
    """What one output's errors are judged by, over all cases of usual values."""

    typical: Typical
    scale: Scale
    noise: Scale


def run(job: VerifyJob) -> VerifyResult:
    """Compare `model.so` and `model.pt2` in `job.folder` with the reference.

    The shared library in the package has to be the bare one, byte for byte, and torch's loader of
    packages to give the same bits for a few cases. The library's calls are made again, from several
    threads, and with inputs that are laid out differently: what it takes has to be computed right.
    """
    cases = load_cases(job.reference)
    device = device_of(job.target)
    found = _Findings(job, _yardsticks(cases), _model_of(job), reasons=[*_other_libraries(job)])
    library = from_the_host(open_shared_library(job.folder / SHARED_LIBRARY, device), device)
    given = _compare_all(found, library, cases)
    if not found.reasons:
        _try_manners(found, library, cases, given)
    found.reasons += _unchecked_inputs(library, cases)
    # Its copy of the weights goes with it, before another comes.
    del library
    package = from_the_host(open_package(job.folder / PACKAGE, device), device)
    _compare_package(found, package, (_drawn(cases) or cases)[:_FEW], given)
    found.reasons += _beyond_assumptions(job.assumed, cases)
    if not cases:
        found.reasons.append("no case of the input plan could be compared")
    found.refuse_decisions()
    found.tell_set_aside()
    found.tell_atomic_sums()
    blind = _blind_outputs(cases)
    found.notes += [f"output {index} is {value:g} at every input" for index, value in blind]
    return VerifyResult(
        tuple(found.deviations), tuple(found.reasons), tuple(found.notes),
        tuple(index for index, _ in blind), spreads_of(found.spreads.values()),
        found.not_comparable(),
    )  # fmt: skip


def _model_of(job: VerifyJob) -> Callable[[], Callable[..., object]] | None:
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
            told = f"{case.name}: the package failed: {first_line(error)}"
            # An error is no wrong number, where nobody has said that this is served.
            (found.reasons if case.is_served else found.notes).append(told)
            continue
        found.compare(case.name, case, gave[case.name])
        found.reasons += _inputs_changed(case, given)
    return gave


def _compare_package(
    found: _Findings, package: Package, cases: Sequence[ReferenceCase], gave: dict[str, Tensors]
) -> None:
    """Call torch's loader of packages: it has to give what the bare library gave."""
    for case in cases:
        if case.name not in gave:
            continue
        try:
            again = package(copies(case.inputs))
        except RuntimeError as error:
            found.reasons.append(f"{case.name}: the package failed: {first_line(error)}")
            continue
        if not identical(gave[case.name], again):
            found.differs(case, "in model.pt2", again, "model.pt2 and model.so give different bits")


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
    for case, manner, outputs in repeated_calls(library, few):
        found.differs(case, manner, outputs, f"{manner}, the package gives other bits")
    # What isn't told by its bits has to show in numbers, and is given more occasions to.
    rounds = _MORE_ROUNDS if found.job.atomic_sums else _ROUNDS
    for case, manner, outputs in threaded_calls(library, few, rounds):
        found.differs(case, manner, outputs, f"{manner}, the package gives other bits")
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


def _yardsticks(cases: Sequence[ReferenceCase]) -> list[_Yardstick]:
    """Return what each output is judged by, over all cases that aren't special."""
    drawn = _drawn(cases) or list(cases)
    count = min((len(case.eager) for case in cases), default=0)
    return [_yardstick(drawn, index) for index in range(count)]


def _yardstick(cases: Sequence[ReferenceCase], index: int) -> _Yardstick:
    scale = find_scale(case.eager[index] for case in cases)
    return _Yardstick(
        typical_error((case.eager[index], case.float64[index]) for case in cases), scale,
        find_scale(
            case.eager[index].double() - case.float64[index].double() for case in cases
            if case.eager[index].shape == case.float64[index].shape
        ),
    )  # fmt: skip


def _blind_outputs(cases: Sequence[ReferenceCase]) -> list[tuple[int, float]]:
    """Return the outputs that are one number in every case, which a wrong package may give, too."""
    drawn = _drawn(cases)
    blind = []
    for index in range(min((len(case.float64) for case in drawn), default=0)):
        only = _only_number([case.float64[index] for case in drawn])
        # What rounding makes vary in eager alone, a wrong package makes vary otherwise.
        if only is not None and _only_number([case.eager[index] for case in drawn]) is not None:
            blind.append((index, only))
    return blind


def _only_number(outputs: Sequence[torch.Tensor]) -> float | None:
    """Return the number that all elements of all tensors are; None where they differ."""
    values = [output.double().flatten() for output in outputs if output.numel()]
    if not values:
        return None
    ends = torch.cat([torch.stack([v.min(), v.max()]) for v in values])
    return float(ends[0]) if bool((ends == ends[0]).all()) else None


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
