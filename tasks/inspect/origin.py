"""Where a delivery says that it comes from, and what it doesn't say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from handoff.artifacts.delivery.contract import CONTRACT_FILE, Lineage
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
