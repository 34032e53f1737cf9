"""What a delivery says of itself, or doesn't: where it comes from, and what isn't in its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from handoff.artifacts.delivery.contract import CONTRACT_FILE, DeliveryContract, Lineage
from handoff.artifacts.release.evidence import Finding


def missing_lineage(lineage: Lineage, required: tuple[str, ...]) -> Iterator[Finding]:
    """Find the fields of the lineage that the recipe requires, and those that are empty at all."""
    empty = [field.name for field in fields(lineage) if not getattr(lineage, field.name)]
    wanted = [name for name in empty if name in required]
    if wanted:
        yield Finding(
            "lineage-incomplete",
            "unsound",
            f"the recipe requires {', '.join(wanted)}, which the delivery doesn't say",
            f"Write it under [source] in {CONTRACT_FILE}, or deliver from a clean git checkout",
            CONTRACT_FILE,
        )
    elif unknown := [name for name in empty if name in ("repository", "commit")]:
        yield Finding(
            "lineage-incomplete",
            "note",
            f"the delivery doesn't say its {' and '.join(unknown)}",
            f"Write it under [source] in {CONTRACT_FILE}, or deliver from a git checkout",
            CONTRACT_FILE,
        )


def left_out(contract: DeliveryContract) -> Iterator[Finding]:
    """Find what the capture left out, and which arguments it fixed to the example's values."""
    for what in contract.left_out:
        yield Finding(
            "left-out",
            "note",
            what.removeprefix("left out: ") + " is not in the graph"
            if what.startswith("left out: ") else what,
            "Nothing needs to be done where only training needs it",
            "delivery.toml",
        )  # fmt: skip
    for argument in contract.structure.fixed:
        yield Finding(
            "fixed-argument",
            "note",
            f"{argument}, as in the example's call: the graph has no such argument",
            "Deliver once for each value that is served, or make it a tensor and decide by "
            "torch.where",
            "delivery.toml",
        )
