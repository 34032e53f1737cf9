"""The operator samples: PyTorch's own, by pairs of operator and dtype, and sizes around vectors'.

A pair is an operator of PyTorch's test suite (`op_db`) and a dtype. Each gets a few samples, those
first whose arguments differ, and the same ones every time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.messages import Pairs, PairsJob
from handoff.tasks.conformance.patterns import PATTERNS, PREFIX

# Those that packages take or compute with.
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32, torch.uint8, torch.int8, torch.bfloat16, torch.float16, torch.int64,
        torch.bool, torch.float64, torch.int32,
    )
}  # fmt: skip

# How many samples a pair gets where it isn't one: most where models compute most. One of our own
# stands for one of PyTorch's.
_SAMPLES = {"float32": 3}
_MAX_SEARCHED = 40
_MAX_ELEMENTS = 20_000
# Beyond the width of a vector of 8 bits, with and without a remainder; whole rows of 16.
_LENGTH = 83
_ROWS = (3, 16)

# Of 4.5 and less eager makes a 5; a package rounds what float32 gives.
_FIXED_POINT = (
    "nn.functional.interpolate.bilinear", "nn.functional.interpolate.bicubic",
    "nn.functional.upsample_bilinear", "_upsample_bilinear2d_aa",
)  # fmt: skip

# What a pair's tensors are mixed with: by which rule the result gets its dtype.
_MIXED_WITH = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int64: torch.bfloat16,
    torch.bool: torch.float16, torch.uint8: torch.int8,
}  # fmt: skip

_UNINITIALISED = ("empty", "new_empty", "resize_", "set_")


@dataclass(frozen=True)
class Pair:
    """An operator of PyTorch's test suite, by its full name, and a dtype by its name."""

    operator: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.operator}:{self.dtype}"


@dataclass(frozen=True)
class Sample:
    """One call of an operator: `function` takes the tensors and returns those of the result.

    `place` numbers it among its pair's, `constants` are the arguments that are floating-point
    numbers, and `description` shows all arguments.
    """

    pair: Pair
    place: int
    function: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    tensors: tuple[torch.Tensor, ...]
    constants: tuple[float, ...]
    description: str
    rounded_function: Callable[[list[torch.Tensor]], list[torch.Tensor]]


class NoSamples(Exception):
    """A pair has nothing that can be compiled and compared; the message says why."""


@cache
def _operators() -> dict[str, Any]:
    # It takes seconds to import.
    from torch.testing._internal.common_methods_invocations import op_db

    infos: tuple[Any, ...] = (*PATTERNS, *op_db)
    return {info.full_name: info for info in infos}


def all_pairs() -> list[Pair]:
    """Return every pair that eager supports on the CPU: by dtype, what models use most first."""
    return [
        Pair(name, dtype)
        for dtype, kind in DTYPES.items()
        for name, info in _operators().items()
        if kind in info.supported_dtypes("cpu")
    ]


def integers_may_vary(operator: str) -> bool:
    """Return whether integers given to the operator are numbers, and no indices or sizes."""
    from torch.testing._internal.opinfo.core import (
        BinaryUfuncInfo,
        ReductionOpInfo,
        UnaryUfuncInfo,
    )

    kinds = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
    return (
        isinstance(_operators()[operator], kinds)
        or operator in _TAKES_NUMBERS
        or operator.startswith(PREFIX)
    )


_TAKES_NUMBERS = {
    "clamp", "where", "sort", "argsort", "msort", "topk", "cumsum", "cumprod", "cummax", "cummin",
    "max.reduction_no_dim", "max.reduction_with_dim", "max.binary", "min.reduction_no_dim",
    "min.reduction_with_dim", "min.binary", "argmax", "argmin", "aminmax", "addcmul", "addcdiv",
    "mm", "matmul", "bmm", "addmm", "dot", "mv", "diff", "trapezoid", "median", "mode", "kthvalue",
    "unique", "cat", "stack", "lerp", "nn.functional.relu", "nn.functional.relu6", "clamp_max",
    "clamp_min", "maximum", "minimum", "fmod", "remainder", "floor_divide",
}  # fmt: skip


def samples_of(pair: Pair) -> list[Sample]:
    """Return the pair's samples; raise `NoSamples` where there is none to compile."""
    info = _operators()[pair.operator]
    if pair.operator.startswith(_UNINITIALISED):
        raise NoSamples("its result is uninitialised memory")
    if pair.dtype == "uint8" and pair.operator in _FIXED_POINT:
        raise NoSamples("eager computes it in fixed point, to within one")
    # Some samplers draw from Python's and numpy's generators, too.
    _seed_generators(0)
    inputs = enumerate(_choose_samples(info, pair))
    samples = [_make_sample(info, pair, place, sample_input) for place, sample_input in inputs]
    usable = [sample for sample in samples if sample is not None]
    if not usable:
        raise NoSamples("it has no sample with a dense tensor")
    return usable


def _seed_generators(number: int) -> None:
    import numpy

    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def _choose_samples(info: Any, pair: Pair) -> Iterator[Any]:  # noqa: ANN401 - torch's own untyped classes
    """Give samples of other arguments first, then others, as many as the pair gets."""
    kind = DTYPES[pair.dtype]
    vector_sized = list(_vector_sized_samples(info, kind))
    yield from vector_sized
    count = max(0, _SAMPLES.get(pair.dtype, 1) - bool(vector_sized))
    if not count:
        return
    drawn = info.sample_inputs("cpu", kind, requires_grad=False)
    usable = filter(_is_usable, itertools.islice(drawn, _MAX_SEARCHED))
    seen: set[str] = set()
    first: list[Any] = []
    later: list[Any] = []
    for sample_input in usable:
        key = _signature(sample_input)
        (later if key in seen else first).append(sample_input)
        seen.add(key)
    # Spread over what there is: neighbours are alike.
    step = max(1, len(first) // count)
    spread = first[::step][:count]
    yield from [*spread, *later][:count]


def _vector_sized_samples(info: Any, kind: torch.dtype) -> Iterator[Any]:  # noqa: ANN401 - as above
    """Give the samples whose sizes are about the vectors' widths."""
    from torch.testing._internal.opinfo.core import (
        BinaryUfuncInfo,
        ReductionOpInfo,
        SampleInput,
        UnaryUfuncInfo,
    )

    draw = partial(_draw, kind)
    if isinstance(info, UnaryUfuncInfo):
        numbers = _move_into_domain(info.domain, draw(_LENGTH))
        yield SampleInput(numbers, kwargs=info.sample_kwargs("cpu", kind, numbers)[0])
    elif isinstance(info, BinaryUfuncInfo):
        # Variants differ in their keyword arguments: how to round, say.
        variant = next(iter(info.sample_inputs("cpu", kind))).kwargs
        yield SampleInput(draw(_LENGTH), args=(draw(_LENGTH),), kwargs=variant)
        if kind.is_floating_point:
            yield SampleInput(draw(_LENGTH), args=(0.3,), kwargs=variant)
        if other := _MIXED_WITH.get(kind):
            yield SampleInput(draw(_LENGTH), args=(draw(_LENGTH).to(other),), kwargs=variant)
    elif info.full_name in (
        "nn.functional.interpolate.nearest",
        "nn.functional.interpolate.nearest-exact",
    ):
        # Of one axis the size doesn't change, though its scale isn't 1.
        mode = info.full_name.rpartition(".")[2]
        kwargs = {"scale_factor": (1.3, 1.5), "mode": mode}
        yield SampleInput(draw(1, 1, 3, 4), kwargs=kwargs)
    elif info.full_name in ("max.reduction_with_dim", "min.reduction_with_dim"):
        yield SampleInput(draw(*_ROWS), args=(-1,))
    elif isinstance(info, ReductionOpInfo):
        yield SampleInput(draw(_LENGTH))
        yield SampleInput(draw(*_ROWS), kwargs={"dim": -1})


def _draw(kind: torch.dtype, *shape: int) -> torch.Tensor:
    if kind is torch.bool:
        return torch.rand(shape) < 0.5
    low, high = (1, 10) if not kind.is_floating_point else (-8, 8)
    return (torch.rand(shape) * (high - low) + low).to(kind)


def _move_into_domain(
    domain: tuple[float | None, float | None], numbers: torch.Tensor
) -> torch.Tensor:
    """Return the numbers, or others within the domain of an operator that has one."""
    low, high = domain
    if not numbers.is_floating_point() or (low is None and high is None):
        return numbers
    bottom = -8.0 if low is None else float(low)
    top = 8.0 if high is None else float(high)
    fractions = torch.rand(numbers.shape) * 0.98 + 0.01
    return fractions.mul(top - bottom).add(bottom).to(numbers.dtype)


def _is_usable(sample_input: Any) -> bool:  # noqa: ANN401 - as above
    leaves = pytree.tree_leaves((sample_input.input, sample_input.args, sample_input.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(
        tensor.layout is torch.strided and not tensor.is_quantized
        and tensor.numel() <= _MAX_ELEMENTS and type(tensor) is torch.Tensor
        for tensor in tensors
    )  # fmt: skip


def _signature(sample_input: Any) -> str:  # noqa: ANN401 - as above
    leaves, spec = pytree.tree_flatten((sample_input.input, sample_input.args, sample_input.kwargs))
    return str(spec) + str([
        (leaf.dim(), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) else leaf
        for leaf in leaves
    ])  # fmt: skip


def _make_sample(info: Any, pair: Pair, place: int, sample_input: Any) -> Sample | None:  # noqa: ANN401
    leaves, spec = pytree.tree_flatten((sample_input.input, sample_input.args, sample_input.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not places or not _is_usable(sample_input):
        return None

    def make_function(constant: list[Any]) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
        def call(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            filled = list(constant)
            for position, tensor in zip(places, tensors, strict=True):
                filled[position] = tensor
            first, args, kwargs = pytree.tree_unflatten(filled, spec)
            result = info.op(first, *args, **kwargs)
            return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

        return call

    # In half precision and in float32, a kernel rounds a number to float32 before it computes.
    narrow = pair.dtype in ("float32", "float16", "bfloat16")
    rounded_leaves = [
        float(torch.tensor(leaf, dtype=torch.float32)) if narrow and type(leaf) is float else leaf
        for leaf in leaves
    ]
    shown = [
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves
    ]  # fmt: skip
    return Sample(
        pair, place, make_function(leaves),
        tuple(leaves[i].detach().clone() for i in places),
        tuple(leaf for leaf in leaves if type(leaf) is float),
        ", ".join(shown)[:200], make_function(rounded_leaves),
    )  # fmt: skip


def list_pairs(job: PairsJob) -> Pairs:
    """Return the pairs in the suite's order, and the toolchain that they are asked about."""
    pairs = tuple(
        str(pair) for pair in all_pairs() if not job.operators or pair.operator in job.operators
    )
    return Pairs(pairs, conformance_toolchain(job.compiler, job.target, job.options))
