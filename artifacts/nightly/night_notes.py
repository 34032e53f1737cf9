"""A night's rows while it goes on: each is kept when its model is done, for whoever sums them up.

nights/20261121T020000Z/resnet18.json        what happened to one model
"""

from __future__ import annotations

import json

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.files.strict_json import parse_json
from handoff.artifacts.nightly.night import NIGHT_LIMIT_BYTES, NightRow
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.artifacts.release.layout import night_row_key
from handoff.artifacts.stores.store import Store


def note_row(store: Store, stamp: str, row: NightRow) -> bool:
    """Keep a row; return False, and change nothing, where the model has one already."""
    data = json.dumps(to_plain(row), sort_keys=True).encode() + b"\n"
    return store.create(night_row_key(stamp, row.model), data)


def read_rows(store: Store, stamp: str) -> tuple[NightRow, ...]:
    """Return the night's rows; raise `StoreFailed` for one that can't be read."""
    rows = []
    for stored in sorted(store.keys(night_row_key(stamp, "")), key=lambda one: one.key):
        data = store.read(stored.key, NIGHT_LIMIT_BYTES)
        try:
            rows.append(from_plain(NightRow, parse_json(data or b""), stored.key))
        except (ValueError, RecordInvalid) as error:
            raise StoreFailed(
                f"{stored.key} is no row of a night", expected="one that this Handoff wrote",
                got=str(error)[:300], remedy="Remove it, and run the night again",
            ) from error  # fmt: skip
    return tuple(rows)
