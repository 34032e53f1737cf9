"""Which requests one version of a model takes, and another would refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec

# An input's name and one of its axes.
_Axis = tuple[str, int]


def refused_requests(before: ModelSignature, after: ModelSignature) -> tuple[str, ...]:
    """Return a phrase for each kind of request that `before` takes and `after` refuses.

    Nothing where `after` takes all of them. Floating-point ranges refuse nothing when a model is
    served, and are left out.
    """
    old = {spec.name: spec for spec in before.inputs}
    new = {spec.name: spec for spec in after.inputs}
    gone = [f"those that give {name}: it has no such input" for name in old if name not in new]
    more = [f"those that don't give {name}: it needs that, too" for name in new if name not in old]
    if gone or more:
        return (*gone, *more)
    if list(old) != list(new):
        return (f"those that give {', '.join(old)} in this order: it takes {', '.join(new)}",)
    found = [
        phrase
        for name, spec in new.items()
        for phrase in (
            *_kinds(old[name], spec),
            *_sizes(old[name], spec, before.dimensions, after.dimensions),
            *_values(old[name], spec),
        )
    ]
    return tuple(dict.fromkeys((*found, *_ties(before, after))))


def _kinds(old: TensorSpec, new: TensorSpec) -> Iterator[str]:
    if old.dtype != new.dtype:
        yield f"those with {old.name} of {old.dtype}: it takes {new.dtype}"
    if len(old.shape) != len(new.shape):
        yield f"those with {old.name} of {len(old.shape)} axes: it takes {len(new.shape)}"


def _sizes(
    old: TensorSpec,
    new: TensorSpec,
    before: Mapping[str, Dimension],
    after: Mapping[str, Dimension],
) -> Iterator[str]:
    if len(old.shape) != len(new.shape):
        return
    for place, (was, now) in enumerate(zip(old.shape, new.shape, strict=True)):
        had, takes = _limits(was, before), _limits(now, after)
        beyond = _beyond((had.min, had.max), (takes.min, takes.max))
        if beyond:
            what = now if isinstance(now, str) else f"axis {place} of {new.name}"
            takes_told = f"{takes.min} to {takes.max}" if takes.min < takes.max else f"{takes.min}"
            yield f"those with {what} of {beyond}: it takes {takes_told}"


def _limits(axis: int | str, dimensions: Mapping[str, Dimension]) -> Dimension:
    return dimensions[axis] if isinstance(axis, str) else Dimension(axis, axis)


def _values(old: TensorSpec, new: TensorSpec) -> Iterator[str]:
    if "int" not in new.dtype or new.low is None or new.high is None:
        return
    takes = math.ceil(new.low), math.floor(new.high)
    if old.low is None or old.high is None:
        yield f"those with other values of {new.name} than {new.values}: any were taken"
        return
    beyond = _beyond((math.ceil(old.low), math.floor(old.high)), takes)
    if beyond:
        yield f"those with {new.name} of {beyond}: it takes {new.values}"


def _beyond(had: tuple[int, int], takes: tuple[int, int]) -> str:
    """Return what lies in the first range and not in the second: `1 to 4 and 65 to 1024`."""
    parts = [(had[0], min(had[1], takes[0] - 1)), (max(had[0], takes[1] + 1), had[1])]
    left = [part for part in parts if part[0] <= part[1]]
    return " and ".join(f"{low} to {high}" if low < high else f"{low}" for low, high in left)


def _ties(before: ModelSignature, after: ModelSignature) -> Iterator[str]:
    """Find sizes that have to be equal now, and could differ before."""
    was = {(spec.name, place): axis for spec in before.inputs for place, axis in
           enumerate(spec.shape)}  # fmt: skip
    first: dict[str, _Axis] = {}
    for spec in after.inputs:
        for place, axis in enumerate(spec.shape):
            if not isinstance(axis, str) or (spec.name, place) not in was:
                continue
            leader = first.setdefault(axis, (spec.name, place))
            if was[leader] != was[spec.name, place]:
                yield (
                    f"those in which axis {place} of {spec.name} and axis {leader[1]} of "
                    f"{leader[0]} differ in size: both are {axis}"
                )
