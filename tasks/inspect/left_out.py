"""What of the original model is not in the graph, as the delivery says it."""

from __future__ import annotations

from collections.abc import Iterator

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.release.evidence import Finding


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
