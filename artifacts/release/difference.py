"""What differs between two versions of a model, and which requests the newer one refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handoff.artifacts.delivery.contract import (
    CALIBRATION_FILE,
    EXAMPLES_FILE,
    INIT_FILE,
    MODULE_FILE,
    SOURCES_FILE,
    code_without_folder,
)
from handoff.artifacts.delivery.metric import EVALUATION_FILE
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.record import canonical_bytes, to_plain
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.stores.objects import Part

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
    phrases = [
        phrase
        for name, spec in new.items()
        for phrase in (
            *_refused_kinds(old[name], spec),
            *_refused_sizes(old[name], spec, before.dimensions, after.dimensions),
            *_refused_values(old[name], spec),
        )
    ]
    return tuple(dict.fromkeys((*phrases, *_new_ties(before, after))))


def _refused_kinds(old: TensorSpec, new: TensorSpec) -> Iterator[str]:
    if old.dtype != new.dtype:
        yield f"those with {old.name} of {old.dtype}: it takes {new.dtype}"
    if len(old.shape) != len(new.shape):
        yield f"those with {old.name} of {len(old.shape)} axes: it takes {len(new.shape)}"


def _refused_sizes(
    old: TensorSpec,
    new: TensorSpec,
    before: Mapping[str, Dimension],
    after: Mapping[str, Dimension],
) -> Iterator[str]:
    if len(old.shape) != len(new.shape):
        return
    for place, (was, now) in enumerate(zip(old.shape, new.shape, strict=True)):
        had, takes = _axis_range(was, before), _axis_range(now, after)
        beyond = _format_beyond((had.min, had.max), (takes.min, takes.max))
        if not beyond and had.min < had.max and had.multiple_of % takes.multiple_of:
            beyond = f"{had}"
        if beyond:
            what = now if isinstance(now, str) else f"axis {place} of {new.name}"
            yield f"those with {what} of {beyond}: it takes {takes}"


def _axis_range(axis: int | str, dimensions: Mapping[str, Dimension]) -> Dimension:
    return dimensions[axis] if isinstance(axis, str) else Dimension(axis, axis)


def _refused_values(old: TensorSpec, new: TensorSpec) -> Iterator[str]:
    if "int" not in new.dtype or new.low is None or new.high is None:
        return
    takes = math.ceil(new.low), math.floor(new.high)
    if old.low is None or old.high is None:
        yield f"those with other values of {new.name} than {new.values}: any were taken"
        return
    beyond = _format_beyond((math.ceil(old.low), math.floor(old.high)), takes)
    if beyond:
        yield f"those with {new.name} of {beyond}: it takes {new.values}"


def _format_beyond(had: tuple[int, int], takes: tuple[int, int]) -> str:
    """Return what lies in the first range and not in the second: `1 to 4 and 65 to 1024`."""
    parts = [(had[0], min(had[1], takes[0] - 1)), (max(had[0], takes[1] + 1), had[1])]
    left = [part for part in parts if part[0] <= part[1]]
    return " and ".join(f"{low} to {high}" if low < high else f"{low}" for low, high in left)


def _new_ties(before: ModelSignature, after: ModelSignature) -> Iterator[str]:
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


@dataclass(frozen=True)
class Change:
    """One thing that differs: where it belongs, its name, and both versions' values ('' none)."""

    section: str
    name: str
    before: str
    after: str


def differences(before: Manifest, after: Manifest) -> tuple[Change, ...]:
    """Return everything that differs, in the order in which a person asks for it.

    The moments at which they were made are left out, because they always differ.
    """
    return (
        *_compare_fields("source", _source_fields(before), _source_fields(after)),
        *_compare_fields("contract", _contract_fields(before), _contract_fields(after)),
        *_compare_fields("passes", _pass_fields(before), _pass_fields(after)),
        *_compare_fields(
            "recipe", _flatten(to_plain(before.recipe)), _flatten(to_plain(after.recipe))
        ),
        *_compare_fields("toolchain", before.toolchain, after.toolchain),
        *_compare_targets(before, after),
    )


# What people call the files of a delivery. The contract isn't among them: what it says of inputs
# and sources is compared by itself, and it names a commit and a moment.
_FILES = {
    MODULE_FILE: "code", INIT_FILE: "code", SOURCES_FILE: "source lines", EXAMPLES_FILE: "examples",
    CALIBRATION_FILE: "calibration", EVALUATION_FILE: "evaluation",
}  # fmt: skip


def delivery_digests(
    files: Mapping[str, Sequence[Part]], read: Callable[[Digest, int], bytes]
) -> dict[str, str]:
    """Return a short digest for each kind of thing in a delivery: its code, its weights, its data.

    `files` are the objects of each file, as a store keeps a delivery; `read` returns an object's
    bytes, of which there are at most so many. Where the delivery was written to doesn't count,
    though its code names that folder.
    """
    kinds: dict[str, dict[str, list[str]]] = {}
    for name in sorted(files):
        kind = "weights" if name.endswith(".pt") else _FILES.get(name)
        if kind is None:
            continue
        digests = [str(part.digest) for part in files[name]]
        if name == MODULE_FILE:
            code = b"".join(read(part.digest, part.size_bytes) for part in files[name])
            digests = [digest_bytes(code_without_folder(code))]
        kinds.setdefault(kind, {})[name] = digests
    return {kind: digest_bytes(canonical_bytes(names)).short for kind, names in kinds.items()}


def compare_deliveries(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """Return what differs of two deliveries, by their `delivery_digests`.

    Nothing is said where one of them was not kept.
    """
    return tuple(_compare_fields("source", before, after)) if before and after else ()


def _compare_fields(
    section: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield Change(section, name, old, new)


def _source_fields(manifest: Manifest) -> dict[str, str]:
    lineage = manifest.lineage
    return {
        "delivery": manifest.delivery.short,
        "verdict": manifest.verdict,
        "findings": ", ".join(sorted(finding.code for finding in manifest.findings)),
        "repository": lineage.repository,
        "commit": lineage.commit,
        "training run": lineage.training_run,
        "author": lineage.author,
    }


def _contract_fields(manifest: Manifest) -> dict[str, str]:
    signature = manifest.signature
    fields = {f"input {spec.name}": str(spec) for spec in signature.inputs}
    fields |= {f"output {spec.name}": str(spec) for spec in signature.outputs}
    fields |= {f"values {spec.name}": _format_values(spec) for spec in signature.inputs}
    fields["result"] = manifest.structure.result
    sizes = signature.dimensions.items()
    return {**fields, **{f"size {name}": f"{size.min} to {size.max}" for name, size in sizes}}


def _format_values(spec: TensorSpec) -> str:
    came = f" ({spec.origin})" if spec.origin and spec.values else ""
    return f"{spec.values}{came}"


def _pass_fields(manifest: Manifest) -> dict[str, str]:
    fields: dict[str, str] = {}
    for effect in manifest.passes:
        did = (
            f"{effect.nodes_before} to {effect.nodes_after} nodes" if effect.modified else "nothing"
        )
        fields[effect.name] = f"left out: {effect.left_out}" if effect.left_out else did
    return fields


def _flatten(plain: object, place: str = "") -> dict[str, str]:
    """Return nested tables as `search.seconds`; passes are compared on their own."""
    if isinstance(plain, Mapping):
        fields: dict[str, str] = {}
        for name, value in plain.items():
            if not (place == "" and name == "passes"):
                fields |= _flatten(value, f"{place}.{name}" if place else str(name))
        return fields
    if isinstance(plain, list):
        return {place: ", ".join(map(str, plain))}
    return {place: str(plain)}


def _compare_targets(before: Manifest, after: Manifest) -> Iterator[Change]:
    old = {target.slug: target for target in before.targets}
    new = {target.slug: target for target in after.targets}
    for slug in dict.fromkeys((*old, *new)):
        empty: dict[str, str] = {}
        yield from _compare_fields(
            slug,
            _target_fields(old[slug]) if slug in old else empty,
            _target_fields(new[slug]) if slug in new else empty,
        )


def _target_fields(target: TargetRecord) -> dict[str, str]:
    library = next((f.digest.short for f in target.files if f.path.endswith(".so")), "")
    fields: dict[str, Any] = {
        "verdict": target.verdict,
        "GPUs": target.unverified_gpus_text if target.accepted else "",
        "model.so": library,
        "chosen": target.chosen,
        "largest error": _format_number(target.max_abs),
        "RMSE over eager's": _format_number(target.rmse_ratio),
        "size in bytes": str(target.size_bytes),
    }
    for timing in target.timings:
        fields[f"speed over eager, {timing.case}"] = timing.over_eager.text
    return fields


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
