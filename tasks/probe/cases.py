"""What the C++ runner is given: cases with the answers that Python got, and inputs to refuse."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.release.mechanics import Outcome
from handoff.artifacts.serve.loader import load_unreleased
from handoff.tasks.compile.arm.emulation import emulated_target
from handoff.tasks.probe.emulated import emulated_package
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.probe.runner_process import ProcessResult
from handoff.tasks.probe.time_limit import bytes_of
from handoff.tasks.verify.loading import SHARED_LIBRARY
from handoff.tasks.verify.reference import ReferenceCase, load_cases

# What the cases may take: seconds of one call of each, and bytes. The smallest is always taken.
_SECONDS = 0.4
_BYTES = 256 << 20
# What those may take that many threads call at once, each all of them; two are always taken.
_CROWDED_SECONDS = 0.1
_CROWDED_MIN_CASES = 2


@dataclass(frozen=True)
class WrittenCases:
    """The cases in the file, the smallest first, and its sizes of the dynamic dimensions.

    `left_out` counts the cases that would take too long.
    """

    names: tuple[str, ...]
    sizes: dict[str, int]
    left_out: int


def write_cases(job: ProbeJob, release: Path, file: Path, crowded: Path) -> WrittenCases:
    """Write cases of the reference with what Python's loader gives for them.

    The smallest of them are in the file `crowded`, too: those for many threads at once.
    """
    with _open_package(job, release) as model:
        return _write_cases(job, model, file, crowded)


@contextmanager
def _open_package(job: ProbeJob, release: Path) -> Iterator[Callable[..., Sequence[torch.Tensor]]]:
    """Give the package as Python calls it, or, for another processor, as it was verified."""
    if emulated_target(job.slug) is None:
        yield load_unreleased(release, job.slug).tensors
        return
    with emulated_package(job, SHARED_LIBRARY, release) as package:
        yield lambda *inputs: package(inputs)


def _write_cases(
    job: ProbeJob, model: Callable[..., Sequence[torch.Tensor]], file: Path, crowded: Path
) -> WrittenCases:
    device = "cuda" if job.fit.gpu_capability else "cpu"
    names: list[str] = []
    crowded_tensors: dict[str, torch.Tensor] = {}
    tensors: dict[str, torch.Tensor] = {}
    cases = sorted(load_cases(job.reference), key=_case_bytes)
    if not cases:
        raise BlessingRefused(
            f"the package for {job.slug} can't be probed",
            expected="a case of the input plan that could be run", got="none",
            remedy="Raise the recipe's verify.max_bytes, or deliver examples",
        )  # fmt: skip
    took_s, taken_bytes = 0.0, 0
    for case in cases:
        if names and (took_s > _SECONDS or taken_bytes + _case_bytes(case) > _BYTES):
            break
        # Copies, because a model may change its inputs in place.
        inputs = [tensor.clone().to(device) for tensor in case.inputs]
        began = time.perf_counter()
        try:
            outputs = [tensor.cpu() for tensor in model(*inputs)]
        except RuntimeError:
            if case.is_served:
                raise
            # An error there, which verify has noted.
            continue
        took_s += time.perf_counter() - began
        taken_bytes += _case_bytes(case)
        tensors |= _case_tensors(
            len(names), [spec.name for spec in job.signature.inputs], case, outputs
        )
        names.append(case.name)
        if len(names) <= _CROWDED_MIN_CASES or took_s <= _CROWDED_SECONDS:
            crowded_tensors = dict(tensors)
    save_file(tensors, file)
    save_file(crowded_tensors, crowded)
    specs = zip(job.signature.inputs, cases[0].inputs, strict=True)
    sizes = job.signature.measure({spec.name: tuple(tensor.shape) for spec, tensor in specs})
    return WrittenCases(tuple(names), sizes, len(cases) - len(names))


def _case_tensors(
    index: int, names: Sequence[str], case: ReferenceCase, outputs: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    inputs = zip(names, case.inputs, strict=True)
    return {
        **{f"{index}/inputs/{name}": tensor.clone().contiguous() for name, tensor in inputs},
        **{f"{index}/outputs/{i}": t.clone().contiguous() for i, t in enumerate(outputs)},
    }


def _case_bytes(case: ReferenceCase) -> int:
    return bytes_of(case.inputs)


# What a careless caller gives instead, wider and narrower: bytes that are read as others.
_OTHER_DTYPES = {
    "float64": ("float32", "int64"),
    "float32": ("float64", "float16"),
    "float16": ("float32", "int16"),
    "bfloat16": ("float32", "float16"),
    "int64": ("int32", "float64"),
    "int32": ("int64", "float32"),
    "int16": ("int64", "int8"),
    "int8": ("int64", "uint8"),
    "uint8": ("int64", "int8"),
    "bool": ("int64", "uint8"),
}
_FAR_OUTSIDE = 2**62
_RANGES = {"int64": 63, "int32": 31, "int16": 15, "int8": 7, "uint8": 8}

TrialOutcomes = dict[str, tuple[Outcome, str]]

# So many in one command line, which has a limit.
_BATCH_SIZE = 200


def describe_hostile(
    signature: ModelSignature, sizes: Mapping[str, int], *, on_gpu: bool = False
) -> tuple[str, ...]:
    """Return one description for each thing that can be wrong with a call, none of them twice.

    `sizes` are those of the dynamic dimensions in the good call that is changed.
    """
    descriptions = ["missing", "extra"]
    for name, limits in signature.dimensions.items():
        if any(name in spec.shape for spec in signature.inputs):
            descriptions.append(f"@{name}={limits.max + 1}")
            descriptions += [
                f"@{name}={size}" for size in sorted({limits.min - 1, 0}) if 0 <= size < limits.min
            ]
            # In the range, and no size.
            descriptions += [f"@{name}={limits.min + 1}"] if limits.min + 1 < limits.second else []
    for spec in signature.inputs:
        changes = [*_wrong_shapes(spec, signature, sizes), *_wrong_kinds(spec, on_gpu=on_gpu)]
        descriptions += [f"{spec.name}:{how}" for how in changes]
    return tuple(dict.fromkeys(descriptions))


def _wrong_shapes(
    spec: TensorSpec, signature: ModelSignature, sizes: Mapping[str, int]
) -> Iterator[str]:
    yield "leading-axis"
    yield "trailing-axis"
    if spec.shape:
        yield "less-axis"
        yield "scalar"
    for axis, size in enumerate(spec.shape):
        if isinstance(size, int):
            yield f"axis{axis}={size + 1}"
        elif sum(spec.shape.count(size) for spec in signature.inputs) > 1:
            # In its range by itself, and another one than the other inputs have.
            limits = signature.dimensions[size]
            others = {limits.min, limits.second, limits.max} - {sizes[size]}
            yield from (f"axis{axis}={other}" for other in sorted(others))


def _wrong_kinds(spec: TensorSpec, *, on_gpu: bool) -> Iterator[str]:
    for dtype in _OTHER_DTYPES[spec.dtype]:
        yield f"dtype={dtype}"
    if spec.shape:
        yield "strided"
    if len(spec.shape) > 1:
        yield "turned"
    yield f"device={'cpu' if on_gpu else 'meta'}"
    yield "undefined"
    for value in _out_of_range_values(spec):
        yield f"last={value}"


def _out_of_range_values(spec: TensorSpec) -> Iterator[int]:
    """Give whole numbers that the dtype holds and the declared range doesn't."""
    if spec.dtype not in _RANGES or spec.low is None or spec.high is None:
        return
    low, high = math.ceil(spec.low), math.floor(spec.high)
    bits = _RANGES[spec.dtype]
    for value in (high + 1, low - 1, _FAR_OUTSIDE):
        if (0 if spec.dtype == "uint8" else -(2**bits)) <= value < 2**bits and (
            not low <= value <= high
        ):
            yield value


def try_all(hostile: Sequence[str], run: Callable[[Sequence[str]], ProcessResult]) -> TrialOutcomes:
    """Return what happened to each hostile input, by its description, and the message about it.

    `run` gives a number of them to a new process. It announces each before it feeds it, so that a
    crash is the announced one's; the rest goes to another process. What crashed after others is
    fed again alone: where it is refused then, it is what one of those before has broken.
    """
    outcomes: TrialOutcomes = {}
    remaining = list(hostile)
    while remaining:
        result = run(remaining[:_BATCH_SIZE])
        count_before = len(outcomes)
        announced = _read_outcomes(result, outcomes)
        if announced is not None:
            outcomes[announced] = _blame(
                announced, result, run, alone=len(outcomes) == count_before
            )
        elif len(outcomes) == count_before:
            # It ended before it came to any: none of them can be said to be survived.
            message = result.message or "the program tried nothing"
            outcomes.update(dict.fromkeys(remaining[:_BATCH_SIZE], ("not run", message)))
        remaining = [name for name in remaining if name not in outcomes]
    return outcomes


def _read_outcomes(result: ProcessResult, outcomes: TrialOutcomes) -> str | None:
    """Note the outcomes that a process printed; return the announced input that has none."""
    announced: str | None = None
    for line in result.lines:
        if line.get("event") == "trying":
            announced = str(line["hostile"])
        elif line.get("event") == "tried":
            outcomes[str(line["hostile"])] = (line["outcome"], str(line["message"])[:300])
            announced = None
    return announced


def _blame(
    name: str, result: ProcessResult, run: Callable[[Sequence[str]], ProcessResult], *, alone: bool
) -> tuple[Outcome, str]:
    if alone:
        return result.outcome or "crashed", result.message or "it ended without an answer"
    outcomes: TrialOutcomes = {}
    again = run([name])
    if _read_outcomes(again, outcomes) == name:
        return again.outcome or "crashed", again.message or "it ended without an answer"
    how = f"{result.outcome or 'crashed'} after others that were refused: {result.message}"
    return "harmed", f"{how}; alone it is {outcomes.get(name, ('not run', ''))[0]}"
