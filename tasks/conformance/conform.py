"""Conform: a bundle of operator samples, compiled for a target and compared with eager."""

from __future__ import annotations

import torch
import torch._inductor.compile_fx  # what takes 5 s to import, done before the first job

from handoff.artifacts.conformance.table import ConformanceRow, Counterexample, PlainTensor
from handoff.tasks.compile.machine.host import require_compiler
from handoff.tasks.conformance.bundling import (
    CapturedSample,
    NotComparable,
    Outcome,
    WrongResult,
    ask,
    capture,
    eager_results,
    first_line,
    require_comparable,
    silence_warnings,
)
from handoff.tasks.conformance.messages import ConformJob, ConformResult
from handoff.tasks.conformance.sampling import NoSamples, Pair, Sample, samples_of
from handoff.tasks.conformance.values import value_sets

# Beyond it an input is shown by its sample and question alone.
_MAX_SHOWN_ELEMENTS = 256


def prepare() -> None:
    """Import the test suite's samples before the first job."""
    from torch.testing._internal import common_methods_invocations

    assert common_methods_invocations.op_db
    silence_warnings()


def run(job: ConformJob) -> ConformResult:
    """Return a row for each of the job's pairs.

    The process has to be held to the target's level (`compile_variables`), as a compilation's is. A
    crash of compiled code ends it.
    """
    require_compiler()
    silence_warnings()
    pairs = [Pair(*text.rsplit(":", 1)) for text in job.pairs]
    captured: list[CapturedSample] = []
    obstacles: dict[Pair, str] = {}
    for pair in pairs:
        try:
            samples = samples_of(pair)
        except NoSamples as error:
            obstacles[pair] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 - the test suite's own samplers may fail
            obstacles[pair] = f"its samples can't be made: {first_line(error)}"
            continue
        for sample in samples:
            if job.eager_only:
                for _, tensors in value_sets(sample):
                    try:
                        eager_results(sample, tensors)
                    except Exception:  # noqa: BLE001, S112 - a refusal is no crash
                        continue
                continue
            captured_sample = _capture(sample)
            if isinstance(captured_sample, CapturedSample):
                captured.append(captured_sample)
            else:
                obstacles.setdefault(pair, captured_sample)
    outcomes = ask(captured, job.target, dict(job.options)) if captured else []
    return ConformResult(tuple(_row(pair, outcomes, obstacles) for pair in pairs))


def _capture(sample: Sample) -> CapturedSample | str:
    """Return the sample as torch.export takes it, or why it isn't compiled."""
    try:
        require_comparable(sample)
        return capture(sample)
    except NotComparable as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - what export can't take is a result
        return f"torch.export: {first_line(error)}"


def _row(pair: Pair, outcomes: list[Outcome], obstacles: dict[Pair, str]) -> ConformanceRow:
    of_pair = [one for one in outcomes if one.captured.sample.pair == pair]
    compiled = [one for one in of_pair if not one.obstacle]
    calls = tuple(sorted({call for one in of_pair for call in one.captured.calls}))
    reason = next((one.obstacle for one in of_pair if one.obstacle), obstacles.get(pair, ""))
    if not compiled:
        return ConformanceRow(pair.operator, pair.dtype, "not compiled", reason, calls=calls)
    wrong = [fault for one in compiled for fault in one.wrong]
    asked = sum(one.asked for one in compiled)
    if not wrong:
        return ConformanceRow(pair.operator, pair.dtype, "right", asked=asked, calls=calls)
    smallest = min(wrong, key=_size)
    questions = tuple(dict.fromkeys(one.question for one in wrong))
    return ConformanceRow(
        pair.operator, pair.dtype, "wrong", asked=asked, calls=calls,
        showing=_showing(smallest), questions=questions,
    )  # fmt: skip


def _size(wrong: WrongResult) -> tuple[int, int]:
    return sum(tensor.numel() for tensor in wrong.tensors), wrong.captured.sample.place


def _showing(wrong: WrongResult) -> Counterexample:
    fault, captured = wrong.fault, wrong.captured
    small = sum(tensor.numel() for tensor in wrong.tensors) <= _MAX_SHOWN_ELEMENTS
    inputs = tuple(map(to_plain_tensor, wrong.tensors)) if small else ()
    return Counterexample(
        wrong.question, captured.sample.description, captured.calls, captured.code, inputs,
        fault.output, fault.wrong, fault.elements, fault.first, fault.got, fault.want,
    )  # fmt: skip


def to_plain_tensor(tensor: torch.Tensor) -> PlainTensor:
    """Return a tensor as numbers; those of a complex one are its real and imaginary parts."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = real.reshape(-1)
    values = [int(v) if isinstance(v, bool) else v for v in flat.tolist()]
    return PlainTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(values))
