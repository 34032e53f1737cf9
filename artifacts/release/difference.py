"""What differs between two versions of a model: sources, passes, toolchain, numbers, speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.manifest import Manifest, TargetRecord


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
        *_fields("source", _source(before), _source(after)),
        *_fields("contract", _contract(before), _contract(after)),
        *_fields("passes", _passes(before), _passes(after)),
        *_fields("recipe", _flat(to_plain(before.recipe)), _flat(to_plain(after.recipe))),
        *_fields("toolchain", before.toolchain, after.toolchain),
        *_targets(before, after),
    )


def _fields(section: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield Change(section, name, old, new)


def _source(manifest: Manifest) -> dict[str, str]:
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


def _contract(manifest: Manifest) -> dict[str, str]:
    signature = manifest.signature
    told = {f"input {spec.name}": str(spec) for spec in signature.inputs}
    told |= {f"output {spec.name}": str(spec) for spec in signature.outputs}
    told |= {f"values {spec.name}": _values(spec) for spec in signature.inputs}
    sizes = signature.dimensions.items()
    return {**told, **{f"size {name}": f"{size.min} to {size.max}" for name, size in sizes}}


def _values(spec: TensorSpec) -> str:
    came = f" ({spec.origin})" if spec.origin and spec.values else ""
    return f"{spec.values}{came}"


def _passes(manifest: Manifest) -> dict[str, str]:
    told: dict[str, str] = {}
    for effect in manifest.passes:
        did = (
            f"{effect.nodes_before} to {effect.nodes_after} nodes" if effect.modified else "nothing"
        )
        told[effect.name] = f"left out: {effect.left_out}" if effect.left_out else did
    return told


def _flat(plain: object, place: str = "") -> dict[str, str]:
    """Return nested tables as `search.seconds`; passes are told of on their own."""
    if isinstance(plain, Mapping):
        found: dict[str, str] = {}
        for name, value in plain.items():
            if not (place == "" and name == "passes"):
                found |= _flat(value, f"{place}.{name}" if place else str(name))
        return found
    if isinstance(plain, list):
        return {place: ", ".join(map(str, plain))}
    return {place: str(plain)}


def _targets(before: Manifest, after: Manifest) -> Iterator[Change]:
    old = {target.slug: target for target in before.targets}
    new = {target.slug: target for target in after.targets}
    for slug in dict.fromkeys((*old, *new)):
        empty: dict[str, str] = {}
        yield from _fields(
            slug,
            _figures(old[slug]) if slug in old else empty,
            _figures(new[slug]) if slug in new else empty,
        )


def _figures(target: TargetRecord) -> dict[str, str]:
    library = next((f.digest.short for f in target.files if f.path.endswith(".so")), "")
    told: dict[str, Any] = {
        "verdict": target.verdict,
        "code": library,
        "chosen": target.chosen,
        "largest error": _number(target.max_abs),
        "RMSE over eager's": _number(target.rmse_ratio),
        "size in bytes": str(target.size_bytes),
    }
    for timing in target.timings:
        told[f"speed over eager, {timing.case}"] = str(timing.over_eager)
    return told


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
