"""Which inputs a package has to refuse, as `infra/runner/hostile.h` describes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.release.mechanics import Outcome
from handoff.tasks.probe.child import Ended

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
_FAR = 2**62
_RANGES = {"int64": 63, "int32": 31, "int16": 15, "int8": 7, "uint8": 8}

Tried = dict[str, tuple[Outcome, str]]

# So many in one command line, which has a limit.
_AT_ONCE = 200


def describe_hostile(
    signature: ModelSignature, sizes: Mapping[str, int], *, on_gpu: bool = False
) -> tuple[str, ...]:
    """Return one description for each thing that can be wrong with a call, none of them twice.

    `sizes` are those of the dynamic dimensions in the good call that is changed.
    """
    found = ["missing", "extra"]
    for name, limits in signature.dimensions.items():
        if any(name in spec.shape for spec in signature.inputs):
            found.append(f"@{name}={limits.max + 1}")
            found += [
                f"@{name}={size}" for size in sorted({limits.min - 1, 0}) if 0 <= size < limits.min
            ]
    for spec in signature.inputs:
        changes = [*_other_shapes(spec, signature, sizes), *_other_kinds(spec, on_gpu=on_gpu)]
        found += [f"{spec.name}:{how}" for how in changes]
    return tuple(dict.fromkeys(found))


def _other_shapes(
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
            others = {limits.min, min(limits.min + 1, limits.max), limits.max} - {sizes[size]}
            yield from (f"axis{axis}={other}" for other in sorted(others))


def _other_kinds(spec: TensorSpec, *, on_gpu: bool) -> Iterator[str]:
    for dtype in _OTHER_DTYPES[spec.dtype]:
        yield f"dtype={dtype}"
    if spec.shape:
        yield "strided"
    if len(spec.shape) > 1:
        yield "turned"
    yield f"device={'cpu' if on_gpu else 'meta'}"
    yield "undefined"
    for value in _outside(spec):
        yield f"last={value}"


def _outside(spec: TensorSpec) -> Iterator[int]:
    """Give whole numbers that the dtype holds and the declared range doesn't."""
    if spec.dtype not in _RANGES or spec.low is None or spec.high is None:
        return
    low, high = math.ceil(spec.low), math.floor(spec.high)
    bits = _RANGES[spec.dtype]
    for value in (high + 1, low - 1, _FAR):
        if (0 if spec.dtype == "uint8" else -(2**bits)) <= value < 2**bits and (
            not low <= value <= high
        ):
            yield value


def try_all(hostile: Sequence[str], run: Callable[[Sequence[str]], Ended]) -> Tried:
    """Return what happened to each hostile input, by its description, and the words about it.

    `run` gives a number of them to a new process. It announces each before it feeds it, so that a
    crash is the announced one's; the rest goes to another process. What crashed after others is
    fed again alone: where it is refused then, it is what one of those before has broken.
    """
    found: Tried = {}
    left = list(hostile)
    while left:
        ended = run(left[:_AT_ONCE])
        before = len(found)
        announced = _read_outcomes(ended, found)
        if announced is not None:
            found[announced] = _blame(announced, ended, run, alone=len(found) == before)
        elif len(found) == before:
            # It ended before it came to any: none of them can be said to be survived.
            told = ended.told or "the program tried nothing"
            found.update(dict.fromkeys(left[:_AT_ONCE], ("not run", told)))
        left = [name for name in left if name not in found]
    return found


def _read_outcomes(ended: Ended, found: Tried) -> str | None:
    """Note the outcomes that a process printed; return the one that was announced and not told."""
    announced: str | None = None
    for line in ended.lines:
        if line.get("event") == "trying":
            announced = str(line["hostile"])
        elif line.get("event") == "tried":
            found[str(line["hostile"])] = (line["outcome"], str(line["message"])[:300])
            announced = None
    return announced


def _blame(
    name: str, ended: Ended, run: Callable[[Sequence[str]], Ended], *, alone: bool
) -> tuple[Outcome, str]:
    if alone:
        return ended.outcome or "crashed", ended.told or "it ended without an answer"
    repeated: Tried = {}
    again = run([name])
    if _read_outcomes(again, repeated) == name:
        return again.outcome or "crashed", again.told or "it ended without an answer"
    how = f"{ended.outcome or 'crashed'} after others that were refused: {ended.told}"
    return "harmed", f"{how}; alone it is {repeated.get(name, ('not run', ''))[0]}"
