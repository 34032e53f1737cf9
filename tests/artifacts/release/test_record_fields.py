"""The names in what is written to last: none that a record ever had may get lost by a rename."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from pathlib import Path

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.night import Night
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.infra.notifications.outbox import Memory
from handoff.infra.triggers.hooks import Hooks

GOLDEN = Path(__file__).parents[2] / "golden" / "fields-1.json"
RECORDS = (Conformance, DeliveryContract, Hooks, LedgerEntry, Manifest, Memory, Night, Recipe)


def fields_of(kind: object, seen: tuple[object, ...] = ()) -> Iterator[str]:
    """Give the paths of a record's fields, `targets.fit.glibc`, those of nested records too."""
    for inner in typing.get_args(kind):
        yield from fields_of(inner, seen)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or kind in seen:
        return
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        yield field.name
        for path in fields_of(hints[field.name], (*seen, kind)):
            yield f"{field.name}.{path}"


def test_every_field_that_a_record_ever_had_has_its_name_still() -> None:
    now = {kind.__name__: sorted(set(fields_of(kind))) for kind in RECORDS}
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    lost = {
        f"{name}.{path}"
        for name, paths in golden.items()
        for path in paths
        if path not in now[name]
    }
    assert not lost, "what was written with these can't be read any more"
    assert now == golden, f"write the new ones to {GOLDEN.name}: from now on they last"


def test_the_records_within_records_are_looked_at() -> None:
    assert {"captures", "captures.road", "targets.fit.glibc"} <= set(fields_of(Manifest))
