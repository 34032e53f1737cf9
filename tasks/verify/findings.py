"""What verify has found so far: each comparison, what it lets off, and why it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from handoff.artifacts.recipe.tolerance import Deviation, Tolerance
from handoff.tasks.verify.compare import (
    TypicalErrorSize,
    compare,
    describe_decisions,
    is_decision,
    typical_error,
)
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.elements import (
    FEWEST_RUNS,
    GROSS,
    MOST_AT_STEPS,
    MOST_INCOMPARABLE,
    Moves,
    finite_in_all,
    root_mean_square,
)
from handoff.tasks.verify.figures import OUTPUTS_COUNTED, SpreadCount
from handoff.tasks.verify.inputs.special import NOT_FINITE
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.messages import VerifyJob
from handoff.tasks.verify.reference import ReferenceCase
from handoff.tasks.verify.rounded_program import RoundedProgram
from handoff.tasks.verify.scale import Scale, find_scale

_PROPAGATION_HINT = (
    'if that is of no account, agree on propagation = "note" under [verify] in the recipe'
)
# After so many wrong cases nothing more is asked of how well conditioned the others are.
_WRONG_ENOUGH = 4
# So many kernels are named that add in any order.
_MOST_NAMED = 2


@dataclass(frozen=True)
class Yardstick:
    """What one output's errors are judged by, over all cases of usual values."""

    typical: TypicalErrorSize
    scale: Scale
    noise: Scale


@dataclass
class Findings:
    """What has been found so far."""

    job: VerifyJob
    yardsticks: Sequence[Yardstick]
    model: Callable[[], Callable[..., object]] | None = None
    rounded: RoundedProgram | None = None
    deviations: list[Deviation] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spreads: dict[int, SpreadCount] = field(default_factory=dict)
    wrong_cases: int = 0
    conditionings: dict[tuple[str, bool], Conditioning] = field(default_factory=dict)
    # How many times eager's own error rounding moves an output by, once a case of usual values has
    # asked: the others needn't.
    move_ratios: dict[int, float] = field(default_factory=dict)

    def compare(self, name: str, case: ReferenceCase, outputs: Tensors) -> None:
        """Compare the outputs with the case's reference, under a name of their own.

        They are the package's, flattened; other shapes or dtypes than eager's are reasons.
        """
        if len(outputs) != len(case.eager):
            self.reasons.append(f"{name}: expected {len(case.eager)} outputs, got {len(outputs)}")
            return
        before = len(self.reasons)
        for index, got in enumerate(outputs):
            want, exact = case.eager[index], case.float64[index]
            is_special = case.values != "drawn" or name != case.name
            if not is_special and index < OUTPUTS_COUNTED:
                rounded = self._rounded_program_at(index)
                eager = rounded.eager(case) if rounded else want
                self.spreads.setdefault(index, SpreadCount(index)).add(got, eager, exact)
            deviation = self._judge(name, case, index, got)
            if rounded := self._rounded_program_at(index):
                deviation = rounded.relate_to_eager(deviation, case, got)
            reasons = [f"{name}, output {index}: {reason}" for reason in deviation.reasons]
            if reasons and case.values in NOT_FINITE:
                if self.job.recipe.verify.propagation == "note":
                    self.notes += reasons
                    deviation, reasons = replace(deviation, reasons=()), []
                else:
                    reasons = [f"{reason} ({_PROPAGATION_HINT})" for reason in reasons]
            elif reasons and case.undeclared:
                reasons = [f"{reason}. {_declaration_hint(case)}" for reason in reasons]
            self.deviations.append(replace(deviation, special=is_special))
            self.reasons += reasons
        self.wrong_cases += len(self.reasons) > before

    def judge_difference(
        self, case: ReferenceCase, manner: str, outputs: Tensors, reason: str
    ) -> None:
        """Judge what a further call, made in a `manner`, gave in other bits.

        `reason` is why that is refused. `outputs` are flattened, of any shapes and dtypes. Where
        the package's own code adds in an order that threads decide, its numbers are judged like any
        others instead: they have to be as right as those of the first call.
        """
        if self.job.atomic_sums:
            self.compare(f"{case.name}, {manner}", case, outputs)
        elif (text := f"{case.name}: {reason}") not in self.reasons:
            self.reasons.append(text)

    def note_atomic_sums(self) -> None:
        """Note that the package isn't repeatable bit for bit, and why, if its code is so."""
        if names := self.job.atomic_sums:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            self.notes.append(
                "the package isn't repeatable bit for bit: its threads add floating-point numbers "
                f"to the same places in any order (in {', '.join(names[:_MOST_NAMED])}{more}), and "
                "its further calls were judged by their numbers"
            )

    def note_vacuous_tolerances(self, cases: Sequence[ReferenceCase]) -> None:
        """Note each output for which one number, whatever is asked, is within what was agreed.

        `cases` are those of usual values. What a metric judges is left to that.
        """
        for index, yardstick in enumerate(self.yardsticks):
            mean = (
                None
                if self._rounded_program_at(index)
                else _mean(case.eager[index] for case in cases)
            )
            if mean is None:
                continue
            agreed = self._agreed_tolerance(cases[0].eager[index], index)
            if not any(
                compare(
                    torch.full_like(case.eager[index], mean), case.eager[index],
                    case.float64[index], agreed, output=index, case=case.name,
                    typical=yardstick.typical, scale=yardstick.scale, noise=yardstick.noise,
                ).reasons
                for case in cases
            ):  # fmt: skip
                self.notes.append(
                    f"output {index}: what was agreed shows nothing: {mean:.3g} in the place of "
                    "each element would keep it, too. Agree on less under [tolerance]"
                )

    def _agreed_tolerance(self, want: torch.Tensor, index: int) -> Tolerance:
        """Return what was agreed on an output, by eager's."""
        dtype = str(want.dtype).removeprefix("torch.")
        return self.job.recipe.tolerance_for(dtype, self._output_name(index), self.job.target)

    def _judge(self, name: str, case: ReferenceCase, index: int, got: torch.Tensor) -> Deviation:
        want, yardstick = case.eager[index], self.yardsticks[index]
        agreed = self._agreed_tolerance(want, index)
        if self._rounded_program_at(index):
            agreed = RoundedProgram.tolerance(agreed, yardstick.typical)

        def judge(tolerance: Tolerance, moved: Moves | None) -> Deviation:
            typical = replace(yardstick.typical, move_ratio=self.move_ratios.get(index, 0.0))
            return compare(
                got, want, case.float64[index], tolerance, output=index, case=name,
                typical=typical, scale=yardstick.scale, values=case.values,
                moved=moved, noise=yardstick.noise,
            )  # fmt: skip

        measure_moves = self._moves_of(case, index)
        if not case.undeclared:
            return judge(agreed, measure_moves)
        # What isn't declared as served can't refuse by its precision what all that is allows.
        deviation = judge(agreed, None)
        if not deviation.reasons:
            return deviation
        loose = judge(
            replace(agreed, atol=GROSS * agreed.atol, rtol=GROSS * agreed.rtol), measure_moves
        )
        if loose.reasons:
            return judge(agreed, measure_moves)
        text = f"{name}, output {index}: {deviation.reasons[0]}"
        self.notes.append(
            f"{text}, which refuses nothing, because nobody declared it. {_declaration_hint(case)}"
        )
        return loose

    def _moves_of(self, case: ReferenceCase, index: int) -> Moves | None:
        """Return what measures how far rounding moves an output; None where there is no model."""
        if self.model is None:
            return None
        model, most = self.model, FEWEST_RUNS if self.wrong_cases >= _WRONG_ENOUGH else math.inf
        rounded = self._rounded_program_at(index)
        key = case.name, rounded is not None

        def measure_moves(runs: int) -> torch.Tensor:
            # Only now is the model read: most packages never ask.
            if key not in self.conditionings:
                program = rounded.model if rounded else model()
                self.conditionings[key] = Conditioning(program, case.inputs, case.eager, case.name)
            moves = self.conditionings[key].moved(index, int(min(runs, most)))
            eager = case.eager[index]
            drawn = case.values == "drawn" and eager.is_floating_point()
            if drawn and runs >= FEWEST_RUNS and index not in self.move_ratios:
                self.move_ratios[index] = _move_ratio(moves, eager, case.float64[index])
            return moves

        return measure_moves

    def _rounded_program_at(self, index: int) -> RoundedProgram | None:
        return self.rounded if self.rounded and self.rounded.index == index else None

    def _output_name(self, index: int) -> str:
        return self.job.outputs[index] if index < len(self.job.outputs) else ""

    def refuse_decisions(self) -> None:
        """Refuse outputs too many of whose decisions are others than eager's, over all cases."""
        for index in range(len(self.yardsticks)):
            deviations = [
                d for d in self.deviations if d.output == index and not d.special and is_decision(d)
            ]
            at_step, elements = (
                sum(d.at_step for d in deviations),
                sum(d.elements for d in deviations),
            )
            if at_step <= MOST_AT_STEPS * elements or any(d.reasons for d in deviations):
                continue
            worst = max(deviations, key=lambda deviation: deviation.at_step)
            reason = describe_decisions(at_step, elements)
            worst_index = self.deviations.index(worst)
            self.deviations[worst_index] = replace(worst, reasons=(reason,))
            self.reasons.append(f"{worst.case} and others, output {index}: {reason}")

    def incomparable_outputs(self) -> tuple[int, ...]:
        """Return the outputs too many of whose elements can't be compared."""
        found = []
        for index in range(len(self.yardsticks)):
            deviations = [d for d in self.deviations if d.output == index and not d.special]
            elements = sum(d.elements for d in deviations)
            if sum(d.incomparable for d in deviations) > MOST_INCOMPARABLE * elements:
                found.append(index)
        return tuple(found)

    def note_unjudged_elements(self) -> None:
        """Note how many elements weren't judged, and why, output by output."""
        for index in range(len(self.yardsticks)):
            for where, deviations in (
                ("", [d for d in self.deviations if d.output == index and not d.special]),
                (" of special inputs",
                 [d for d in self.deviations if d.output == index and d.special]),
            ):  # fmt: skip
                elements = sum(d.elements for d in deviations)
                at_step = sum(d.at_step for d in deviations)
                incomparable = sum(d.incomparable for d in deviations)
                if at_step:
                    self.notes.append(
                        f"output {index}: {at_step} of {elements} elements{where} are others than "
                        "in eager, by a step that rounding alone decides"
                    )
                if incomparable:
                    self.notes.append(
                        f"output {index}: {incomparable} of {elements} elements{where} "
                        f"({incomparable / elements:.1%}) are not comparable: rounding alone moves "
                        "them by about their own size"
                    )


def _mean(outputs: Iterable[torch.Tensor]) -> float | None:
    """Return the mean of all finite floating-point numbers; None for none, or always the same."""
    low, high, total, count = math.inf, -math.inf, 0.0, 0
    for output in outputs:
        values = output[output.isfinite()] if output.is_floating_point() else output[:0]
        if values.numel():
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            total, count = total + float(values.double().sum()), count + values.numel()
    return total / count if low < high else None


def _move_ratio(moves: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor) -> float:
    """Return how many times eager's error the moves are, by their RMS; 0 where it has none.

    All three have one shape.
    """
    moves, eager, exact = finite_in_all(moves, eager, float64)
    error = root_mean_square(eager - exact)
    return root_mean_square(moves) / error if error else 0.0


def _declaration_hint(case: ReferenceCase) -> str:
    """Return how to have a case left out, or judged as what is served."""
    names = ", ".join(case.undeclared)
    return (
        f"Nobody has declared which values of {names} are served: declare them (ranges in the "
        "factory, low and high in delivery.toml), and no others are asked"
    )


def drawn_cases(cases: Sequence[ReferenceCase]) -> list[ReferenceCase]:
    """Return the cases of usual values."""
    return [case for case in cases if case.values == "drawn"]


def yardsticks_of(cases: Sequence[ReferenceCase]) -> list[Yardstick]:
    """Return what each output is judged by, over all cases that aren't special."""
    drawn = drawn_cases(cases) or list(cases)
    count = min((len(case.eager) for case in cases), default=0)
    return [_yardstick(drawn, index) for index in range(count)]


def _yardstick(cases: Sequence[ReferenceCase], index: int) -> Yardstick:
    scale = find_scale(case.eager[index] for case in cases)
    return Yardstick(
        typical_error((case.eager[index], case.float64[index]) for case in cases), scale,
        find_scale(
            case.eager[index].double() - case.float64[index].double() for case in cases
            if case.eager[index].shape == case.float64[index].shape
        ),
    )  # fmt: skip
