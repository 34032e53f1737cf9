"""Looks for inputs that a model runs on, among those that its layers speak for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.fx

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.tasks.propose.hints import BATCH, LENGTH, Axis, Hint, candidate_shapes
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs

_Candidate = tuple[Hint, tuple[Axis, ...]]

# What a dimension is tried with, and what shows that it is dynamic.
_FIRST_SIZES = {BATCH: 2, LENGTH: 5}
_OTHER_SIZES = {BATCH: (3,), LENGTH: (7, 3)}
# The longest that is proposed; tables of positions may end before.
_MAX_LENGTH = 512
_BUDGET_S = 60.0
_MAX_TRIES = 2000
_MAX_FEATURES = 65
_UNBOUNDED = 1 << 20


def find_signature(
    module: torch.fx.GraphModule,
    hints: Mapping[str, Hint | None],
    known_specs: Mapping[str, TensorSpec],
    dimensions: Mapping[str, Dimension],
) -> dict[str, TensorSpec] | None:
    """Return the first of the likely inputs that the model runs with, or None.

    `hints` are those of all its inputs in their order. An axis is the batch's or the length's where
    the model runs with two sizes of it, and is fixed otherwise.
    """
    unknown_inputs = [name for name in hints if name not in known_specs]
    shapes = [list(_candidates_for(hints[name], hints, known_specs)) for name in unknown_inputs]
    began = time.monotonic()
    for choice in itertools.islice(_choices(shapes), _MAX_TRIES):
        specs = dict(known_specs)
        for name, (hint, shape) in zip(unknown_inputs, choice, strict=True):
            specs[name] = TensorSpec(name, hint.dtype, shape, hint.low, hint.high)
        ordered = {name: specs[name] for name in hints}
        if _is_runnable(module, ordered, dimensions, {}):
            return _fix_static_dimensions(module, ordered, dimensions)
        if time.monotonic() - began > _BUDGET_S:
            return None
    return None


def _choices(options: Sequence[Sequence[_Candidate]]) -> Iterator[tuple[_Candidate, ...]]:
    """Give first the choices that treat all inputs alike, then every other one."""
    longest = max(map(len, options), default=0)
    for index in range(longest):
        yield tuple(option[min(index, len(option) - 1)] for option in options)
    yield from itertools.product(*options)


def _candidates_for(
    hint: Hint | None, hints: Mapping[str, Hint | None], known_specs: Mapping[str, TensorSpec]
) -> Iterator[_Candidate]:
    """Give candidates for an input; one that no layer takes may be like another input."""
    if hint is not None and hint.shapes:
        for shape in candidate_shapes(hint):
            yield hint, shape
        return
    likely: list[tuple[Axis, ...]] = [spec.shape for spec in known_specs.values()]
    likely += [shape for other in hints.values() for shape in candidate_shapes(other)]
    likely += [(BATCH,), (BATCH, LENGTH)]
    # One feature fits wherever something is broadcast: last, so that no other is taken for it.
    counts = (*range(2, _MAX_FEATURES), 1)
    features: list[tuple[Axis, ...]] = [(BATCH, count) for count in counts]
    if hint is not None:
        for shape in dict.fromkeys(likely + features):
            yield hint, shape
        return
    for dtype, shapes in (("float32", likely + features), ("bool", likely), ("int64", likely)):
        for shape in dict.fromkeys(shapes):
            yield Hint(dtype, (), ""), shape


def _is_runnable(
    module: torch.fx.GraphModule,
    specs: Mapping[str, TensorSpec],
    dimensions: Mapping[str, Dimension],
    sizes: Mapping[str, int],
) -> bool:
    """Return whether the model runs with dimensions of these sizes, the rest at the first ones.

    A size that `dimensions` doesn't allow is replaced by the nearest that it does.
    """
    chosen = {
        name: sizes.get(name, _FIRST_SIZES.get(name, _FIRST_SIZES[LENGTH]))
        for name in _list_dimensions(specs)
    }
    for name in chosen.keys() & dimensions.keys():
        limits = dimensions[name]
        chosen[name] = limits.nearest(chosen[name] // limits.multiple_of)
    unbounded = dict.fromkeys(chosen, Dimension(0, _UNBOUNDED))
    signature = ModelSignature(tuple(specs.values()), (), unbounded)
    try:
        with torch.no_grad():
            module(*draw_inputs(signature, CaseSpec(f"try {chosen}", chosen, 0)))
    except Exception:  # noqa: BLE001 - a model may fail in any way; the next shape is tried
        return False
    return True


def _list_dimensions(specs: Mapping[str, TensorSpec]) -> list[str]:
    axes = (axis for spec in specs.values() for axis in spec.shape)
    return list(dict.fromkeys(axis for axis in axes if isinstance(axis, str)))


def _fix_static_dimensions(
    module: torch.fx.GraphModule,
    specs: dict[str, TensorSpec],
    dimensions: Mapping[str, Dimension],
) -> dict[str, TensorSpec]:
    """Fix the batch or the length where the model runs at one size alone."""
    fixed = specs
    for name, sizes in _OTHER_SIZES.items():
        if not any(_is_runnable(module, specs, dimensions, {name: size}) for size in sizes):
            fixed = {
                key: _fix_dimension(spec, name, _FIRST_SIZES[name]) for key, spec in fixed.items()
            }
    return fixed


def _fix_dimension(spec: TensorSpec, name: str, size: int) -> TensorSpec:
    shape = tuple(size if axis == name else axis for axis in spec.shape)
    return replace(spec, shape=shape)


def find_ranges(
    module: torch.fx.GraphModule,
    specs: Mapping[str, TensorSpec],
    known: Mapping[str, Dimension],
) -> dict[str, Dimension]:
    """Return a range for each dynamic dimension: the one given, or the widest that runs.

    It begins at 2 where the model fails at 1.
    """
    ranges: dict[str, Dimension] = {}
    for name in _list_dimensions(specs):
        if name in known:
            ranges[name] = known[name]
            continue
        longest = _find_longest(module, specs, known) if name == LENGTH else 1024
        first = 1 if _is_runnable(module, specs, known, {name: 1}) else 2
        ranges[name] = Dimension(first, longest)
    return ranges


def _find_longest(
    module: torch.fx.GraphModule,
    specs: Mapping[str, TensorSpec],
    dimensions: Mapping[str, Dimension],
) -> int:
    """Return the longest length up to 512 that the model runs with, found by halving."""
    if _is_runnable(module, specs, dimensions, {LENGTH: _MAX_LENGTH}):
        return _MAX_LENGTH
    runs, fails = _FIRST_SIZES[LENGTH], _MAX_LENGTH
    while fails - runs > 1:
        middle = (runs + fails) // 2
        if _is_runnable(module, specs, dimensions, {LENGTH: middle}):
            runs = middle
        else:
            fails = middle
    return runs


def runs_at_larger_sizes(
    module: torch.fx.GraphModule,
    specs: Mapping[str, TensorSpec],
    name: str,
    dimensions: Mapping[str, Dimension],
) -> bool:
    """Return whether an image's sides could be others: then the proposed ones are a guess."""
    spec = specs[name]
    wider = tuple(size if axis < 2 or isinstance(size, str) else size + 32
                  for axis, size in enumerate(spec.shape))  # fmt: skip
    changed = {**specs, name: replace(spec, shape=wider)}
    return wider != spec.shape and _is_runnable(module, changed, dimensions, {})
