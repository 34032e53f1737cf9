"""Three ways: an old package, a new one and eager, on the same inputs, against float64 and timed.

A package that can't run here (built for another torch, say) is not guessed at: what its record says
stands for it, and the result says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import torch

from handoff.artifacts.errors import first_line
from handoff.artifacts.recipe.tolerance import Deviation, pooled_rmse
from handoff.artifacts.release.comparison import (
    Comparison,
    InterleavedTiming,
    OutputErrors,
    PackageFigures,
    recorded_figures,
)
from handoff.artifacts.release.interval import Interval
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.registry.promotion import judge
from handoff.tasks.timing.benchmark import timed_cases
from handoff.tasks.timing.messages import ThreeWayJob
from handoff.tasks.timing.race import race_in_turns, summarize
from handoff.tasks.verify.compare import TypicalErrorSize, compare, typical_error
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.loading import (
    SHARED_LIBRARY,
    Tensors,
    call_from_host,
    clone_inputs,
    device_of,
    open_shared_library,
)
from handoff.tasks.verify.reference import ReferenceCase, load_cases

Call = Callable[[Tensors], Tensors]


@dataclass
class _Package:
    """One of both packages: its record, what runs it (None where nothing does), what was found."""

    record: TargetRecord
    version: int
    call: Call | None
    why: str = ""
    has_failed: bool = False
    deviations: list[Deviation] = field(default_factory=list)

    def outputs(self, case: ReferenceCase, device: str) -> Tensors | None:
        """Return what it makes of a case, on the CPU; None once it has failed, or isn't run.

        That is flattened, as many as eager's, in the package's own shapes and dtypes.
        """
        if self.call is None:
            return None
        try:
            outputs = call_from_host(self.call, device)(clone_inputs(case.inputs))
        except RuntimeError as error:
            self._give_up(f"it fails at {case.name}: {first_line(error, 200)}")
            return None
        if len(outputs) != len(case.eager):
            self._give_up(f"it gives {len(outputs)} outputs, the model {len(case.eager)}")
            return None
        return outputs

    def apply_metric_decision(self, deviation: Deviation) -> Deviation:
        """Return the deviation, without reasons where the metric decides about its output.

        What has no numbers, or another form than eager's, is wrong all the same.
        """
        is_decided = deviation.output == self.record.decided_by_metric
        if (
            not is_decided
            or deviation.mismatched_non_finite
            or not math.isfinite(deviation.max_abs)
        ):
            return deviation
        return replace(deviation, reasons=())

    def failures(self) -> tuple[str, ...]:
        """Return what is wrong with what it computes here."""
        slug = self.record.slug
        failures = [f"{slug}: {self.why}"] if self.has_failed else []
        for deviation in self.deviations:
            failures += [
                f"{slug}: {deviation.case}, output {deviation.output}: {r}"
                for r in deviation.reasons
            ]
        return tuple(failures)

    def _give_up(self, why: str) -> None:
        """Fall back on the record from now on."""
        self.call, self.why, self.has_failed = None, why, True
        self.deviations.clear()


def run(job: ThreeWayJob) -> Comparison:
    """Compare on every ordinary input of the plan; time the smallest and the largest in turns."""
    device = device_of(job.target)
    old = _open(job.before, job.old, job.old_version, device, job.old_missing)
    new = _open(job.after, job.new, job.new_version, device)
    outputs = _compare_outputs(job, old, new, device)
    heats = tuple(_race(job, old, new, device))
    figures = (
        _figures(old, [heat.old_to_eager for heat in heats]),
        _figures(new, [heat.new_to_eager for heat in heats]),
    )
    compared = Comparison(job.target, *figures, outputs, heats, "equal", ())
    verdict, reasons = judge(job.after, job.before, job.recipe.promotion, compared.side_by_side)
    if failures := new.failures():
        verdict, reasons = "worse", (*failures, *(reasons if verdict == "worse" else ()))
    elif verdict == "equal" and (fixed := old.failures()):
        verdict, reasons = "better", tuple(f"what it replaces is wrong here: {w}" for w in fixed)
    return replace(compared, verdict=verdict, reasons=reasons or _explain_equal(compared))


def _open(
    record: TargetRecord, folder: Path | None, version: int, device: str, missing: str = ""
) -> _Package:
    """Open a package, if this machine and this torch run it."""
    if folder is None:
        return _Package(record, version, None, missing or "its files could not be had")
    misfit = record.fit.misfit(torch.__version__) if record.fit else "it was never built"
    if misfit:
        return _Package(record, version, None, misfit)
    try:
        library = open_shared_library(folder / record.slug / SHARED_LIBRARY, device)
    except (OSError, RuntimeError) as error:
        why = f"it can't be opened: {first_line(error, 200)}"
        return _Package(record, version, None, why, has_failed=True)
    return _Package(record, version, library)


def _compare_outputs(
    job: ThreeWayJob, old: _Package, new: _Package, device: str
) -> tuple[OutputErrors, ...]:
    """Run both on every ordinary case; return what was found about each output."""
    cases = [case for case in load_cases(job.reference) if case.values == "drawn"]
    typical = [
        typical_error((case.eager[index], case.float64[index]) for case in cases)
        for index in range(min((len(case.eager) for case in cases), default=0))
    ]
    apart = [0.0] * len(typical)

    @cache
    def model() -> Callable[..., object]:
        return read_delivery(job.staging).module

    def eager(*inputs: torch.Tensor) -> object:
        return model()(*inputs)

    for case in cases:
        old_outputs, new_outputs = old.outputs(case, device), new.outputs(case, device)
        conditioning = Conditioning(eager, case.inputs, case.eager, case.name)
        for package, outputs in ((old, old_outputs), (new, new_outputs)):
            if outputs is not None:
                deviations = _deviations(job, case, outputs, typical, conditioning)
                package.deviations += map(package.apply_metric_decision, deviations)
        if old_outputs is not None and new_outputs is not None:
            pairs = zip(apart, old_outputs, new_outputs, strict=True)
            apart = [max(so_far, _distance(left, right)) for so_far, left, right in pairs]
    ran_both = old.call is not None and new.call is not None
    return tuple(
        OutputErrors(
            output=job.outputs[index] if index < len(job.outputs) else f"output {index}",
            elements=sum(case.eager[index].numel() for case in cases),
            rmse_eager=error.rmse,
            rmse_old=_rmse(old.deviations, index),
            rmse_new=_rmse(new.deviations, index),
            apart=apart[index] if ran_both else None,
        )
        for index, error in enumerate(typical)
    )


def _deviations(
    job: ThreeWayJob,
    case: ReferenceCase,
    outputs: Tensors,
    typical: Sequence[TypicalErrorSize],
    conditioning: Conditioning,
) -> Iterator[Deviation]:
    for index, got in enumerate(outputs):
        want, exact = case.eager[index], case.float64[index]
        name = job.outputs[index] if index < len(job.outputs) else ""
        dtype = str(want.dtype).removeprefix("torch.")
        agreed = job.recipe.tolerance_for(dtype, name, job.target)
        yield compare(
            got, want, exact, agreed, output=index, case=case.name, typical=typical[index],
            moved=partial(conditioning.moved, index),
        )  # fmt: skip


def _rmse(deviations: Sequence[Deviation], output: int) -> float | None:
    """Return a package's RMSE to float64 over all cases; None where it wasn't run."""
    return pooled_rmse((d.elements, d.rmse_package) for d in deviations if d.output == output)


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest absolute difference; infinite where shapes or special values differ."""
    if left.shape != right.shape:
        return math.inf
    wide = [tensor.double() for tensor in (left, right)]
    same = (wide[0] == wide[1]) | (wide[0].isnan() & wide[1].isnan())
    apart = (wide[0] - wide[1]).abs()[~same]
    return float(apart.nan_to_num(nan=math.inf).max()) if apart.numel() else 0.0


def _race(
    job: ThreeWayJob, old: _Package, new: _Package, device: str
) -> Iterator[InterleavedTiming]:
    """Time eager and what runs here, call by call in turns, on the smallest and largest inputs."""
    if old.call is None and new.call is None:
        return
    module = read_delivery(job.staging).module.to(device)
    calls: list[tuple[str, Callable[[Tensors], object]]] = [
        ("eager", lambda given: flatten_tensors(module(*given)))
    ]
    calls += [(n, p.call) for n, p in (("old", old), ("new", new)) if p.call is not None]
    for case in timed_cases(job.reference):
        inputs = tuple(tensor.to(device) for tensor in case.inputs)
        rounds = race_in_turns([call for _, call in calls], inputs)
        seconds = {name: times for (name, _), times in zip(calls, rounds, strict=True)}
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        yield InterleavedTiming(
            case=case.name,
            rounds=len(seconds["eager"]),
            threads=torch.get_num_threads(),
            eager_s=medians["eager"],
            old_s=medians.get("old"),
            new_s=medians.get("new"),
            new_to_old=_speed(seconds, "new", "old"),
            new_to_eager=_speed(seconds, "new", "eager"),
            old_to_eager=_speed(seconds, "old", "eager"),
        )


def _speed(seconds: dict[str, list[float]], one: str, other: str) -> Interval | None:
    """Return how many times as fast `one` is as `other`; None where either wasn't run."""
    if one not in seconds or other not in seconds:
        return None
    lap = summarize([seconds[one]], [seconds[other]])
    return Interval(lap.ratios[0], lap.ratios_low[0], lap.ratios_high[0])


def _figures(package: _Package, speeds: Sequence[Interval | None]) -> PackageFigures:
    """Return what was measured of a package, or else what its record says."""
    recorded = recorded_figures(package.record, package.version, package.why)
    if package.call is None or not package.deviations:
        return recorded
    seen = replace(package.record, deviations=tuple(package.deviations))
    return replace(
        recorded, basis="measured", rmse_ratio=seen.rmse_ratio, speed=speeds[-1] if speeds else None
    )


def _format_speed(speed: Interval) -> str:
    return f"{speed} times eager's speed" if speed.is_known else f"a speed that is {speed.text}"


def _explain_equal(compared: Comparison) -> tuple[str, ...]:
    """Say by what an equal package is equal."""
    if compared.side_by_side:
        return tuple(map(str, compared.side_by_side))
    parts = []
    for name, figures in (("the new one", compared.new), ("the old one", compared.old)):
        speed = "unknown speed" if figures.speed is None else _format_speed(figures.speed)
        error = "" if figures.rmse_ratio is None else f", {figures.rmse_ratio:.2f} times its error"
        why = f" (by its record: {figures.why})" if figures.basis == "recorded" else ""
        parts.append(f"{name} has {speed}{error}{why}")
    return (f"{compared.target}: no worse as far as is known: {'; '.join(parts)}",)
