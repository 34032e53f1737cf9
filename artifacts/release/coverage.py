"""What a release's packages were compared on, of what is declared, and how close a call it was."""

from __future__ import annotations

import re
from dataclasses import dataclass

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.artifacts.release.manifest import Manifest, TargetRecord

_SIZE = re.compile(r"(?<![^ ])([A-Za-z_][A-Za-z0-9_]*)=([0-9]+)(?![^ ])")


def sizes_of(case: str, signature: ModelSignature) -> dict[str, int]:
    """Return the sizes in a case's name (`batch=7 length=3 seed=0`), by dimension."""
    matches = _SIZE.findall(case)
    return {name: int(size) for name, size in matches if name in signature.dimensions}


def compared_sizes(signature: ModelSignature, target: TargetRecord) -> dict[str, list[int]]:
    """Return the sizes of each dynamic dimension that a package was compared at, in order.

    That is on ordinary inputs; where no output could be compared, on values inside the graph.
    """
    sizes: dict[str, set[int]] = {name: set() for name in signature.dimensions}
    for case_sizes in _sizes_by_case(signature, target):
        for name, size in case_sizes.items():
            sizes[name].add(size)
    return {name: sorted(values) for name, values in sizes.items() if values}


def describe_compared_inputs(signature: ModelSignature, target: TargetRecord) -> tuple[str, ...]:
    """Return on which inputs a package was compared: ordinary and special ones, sizes; in words."""
    special = {one.case: one.special for one in target.deviations if one.output >= 0}
    if not special:
        return ()
    count = sum(special.values())
    sizes = compared_sizes(signature, target)
    return (
        f"{len(special) - count} of ordinary values",
        f"{count} of special values",
        *(f"{name} {', '.join(map(str, values))}" for name, values in sizes.items()),
    )


def beyond_compared(signature: ModelSignature, target: TargetRecord) -> str:
    """Return what is declared and larger than all that was compared: `batch above 17`; '' if none.

    Where each dimension was compared at its largest size, and not all of them together, it is that.
    """
    limits, compared = signature.dimensions, _sizes_by_case(signature, target)
    if not compared:
        return ""
    largest = {name: max(one.get(name, 0) for one in compared) for name in limits}
    below = [f"{name} above {size}" for name, size in largest.items() if size < limits[name].max]
    if below:
        return ", ".join(below)
    largest_together = {name: one.max for name, one in limits.items()}
    if len(limits) < 2 or largest_together in compared:
        return ""
    return " with ".join(f"{name}={size}" for name, size in largest_together.items())


def _sizes_by_case(signature: ModelSignature, target: TargetRecord) -> list[dict[str, int]]:
    ordinary = [one for one in target.deviations if not one.special]
    sizes = [sizes_of(one.case, signature) for one in ordinary or target.deviations]
    return [one for one in sizes if one]


@dataclass(frozen=True)
class ClosestCall:
    """The output that came closest to what was agreed: the `rtol` that it needed beyond `atol`."""

    needed: float
    agreed: Tolerance

    def __str__(self) -> str:
        """Return it as people read it: `2e-07 of 1e-05`."""
        if not self.needed:
            return "none, within atol"
        return f"{self.needed:.1g} of {self.agreed.rtol:.2g}"

    @property
    def text(self) -> str:
        """Return it as half a sentence."""
        if not self.needed:
            return f"within the agreed atol of {self.agreed.atol:g}"
        return f"needs rtol {self.needed:.1g} of the agreed {self.agreed.rtol:g}"


def closest_call(manifest: Manifest, target: TargetRecord) -> ClosestCall | None:
    """Return the closest call on ordinary inputs; None where a metric decides, or all is exact."""
    outputs = [spec.name for spec in manifest.signature.outputs]
    calls = []
    for deviation in target.deviations:
        name = outputs[deviation.output] if 0 <= deviation.output < len(outputs) else ""
        tolerance = manifest.recipe.tolerance_for(deviation.dtype, name, target.slug)
        if (
            deviation.output != target.decided_by_metric
            and tolerance.rtol > 0
            and not deviation.special
        ):
            calls.append(ClosestCall(deviation.required_rtol, tolerance))
    return max(calls, key=lambda call: call.needed / call.agreed.rtol, default=None)
