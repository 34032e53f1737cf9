"""A night: its record of what happened to every model, and its rows while it goes on.

nights/20261121T020000Z/resnet18.json        what happened to one model
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Literal, get_args

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.record import (
    RecordInvalid,
    added_field,
    canonical_bytes,
    from_plain,
    to_plain,
)
from handoff.artifacts.release.comparison import Comparison, PackageFigures
from handoff.artifacts.release.layout import NIGHTS, night_key, night_row_key
from handoff.artifacts.stores.store import Store

SCHEMA = 1
NIGHT_LIMIT_BYTES = 64 << 20
_KEY = re.compile(re.escape(NIGHTS) + r"[0-9]{8}T[0-9]{6}Z\.json")

# `unchanged`: nothing that matters has changed. `replaced`: the alias points to the new version
# now. `kept`: there is a new version, and the alias stayed where it was. `refused`: the new build
# may not be released. `failed` and `crashed`: it ended with an error, or without a word. `skipped`:
# it was left out on purpose.
Outcome = Literal["replaced", "kept", "unchanged", "skipped", "refused", "failed", "crashed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# Those that a person has to look at.
ALARMING: frozenset[Outcome] = frozenset({"refused", "failed", "crashed"})
# Those for which nothing was built, and nothing went wrong.
QUIET: frozenset[Outcome] = frozenset({"unchanged", "skipped"})
# What is said of a model that was served before, and has gone from the store.
LOST = "the model isn't in "


@dataclass(frozen=True)
class NightRow:
    """What happened to one model in `seconds`, and `why`.

    `old` is the version that the alias pointed to at first and `new` the one that was made (None
    without). `comparisons` are the targets' three-way comparisons, and `served` the figures of what
    the alias points to afterwards, one for each target; left out, they are the comparisons'.
    `made_from` is the fingerprint of what a rebuild was made from, and `run` the page of the flow
    run that worked on it, or its id.
    """

    model: str
    outcome: Outcome
    old: int | None = None
    new: int | None = None
    why: str = ""
    comparisons: tuple[Comparison, ...] = ()
    seconds: float = 0.0
    served: tuple[PackageFigures, ...] = added_field(())
    made_from: str = added_field("")
    run: str = added_field("")

    @property
    def is_lost(self) -> bool:
        """Return whether the model was served when a night last looked, and isn't there now."""
        return self.outcome == "failed" and LOST in self.why

    @property
    def served_version(self) -> int | None:
        """The version that the alias points to afterwards."""
        return self.new if self.outcome == "replaced" else self.old

    @property
    def served_figures(self) -> tuple[PackageFigures, ...]:
        """What is known of the packages that are served afterwards, one for each target."""
        if self.served:
            return self.served
        if self.outcome == "replaced":
            return tuple(one.new for one in self.comparisons)
        return tuple(one.old for one in self.comparisons)


@dataclass(frozen=True)
class Night:
    """One run over all models: its date where it was started, and begin and end in UTC.

    `started` and `ended` are ISO 8601 with an offset. `toolchain` is what was built with, and
    `rows` are in the order of their models' names. `alias` is the one that may have moved.
    `conformance` says in sentences which operators the toolchain breaks and fixes.
    """

    date: str
    started: str
    ended: str
    toolchain: dict[str, str] = field(default_factory=dict)
    rows: tuple[NightRow, ...] = ()
    alias: str = "production"
    schema: int = SCHEMA
    conformance: tuple[str, ...] = added_field(())

    def __post_init__(self) -> None:
        """Check schema, dates and that each model has one row."""
        if self.schema != SCHEMA:
            raise ValueError(f"expected a night's record of schema {SCHEMA}, got {self.schema}")
        date.fromisoformat(self.date)
        for name in ("started", "ended"):
            if datetime.fromisoformat(getattr(self, name)).tzinfo is None:
                raise ValueError(f"expected {name} with a time zone, got {getattr(self, name)}")
        names = [row.model for row in self.rows]
        if names != sorted(set(names)):
            raise ValueError("expected one row for each model, in the order of their names")

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many models had each outcome; those of none are left out."""
        outcomes = [row.outcome for row in self.rows]
        return {outcome: outcomes.count(outcome) for outcome in OUTCOMES if outcome in outcomes}

    @property
    def exit_status(self) -> int:
        """0, or 1 where a model was refused, failed or crashed."""
        return int(any(row.outcome in ALARMING for row in self.rows))

    @property
    def eventful(self) -> tuple[str, ...]:
        """The models that something was built for, or went wrong with: whose trends to look at."""
        return tuple(row.model for row in self.rows if row.outcome not in QUIET)

    @property
    def seconds(self) -> float:
        """How long the night took, from its start to its end."""
        return (
            datetime.fromisoformat(self.ended) - datetime.fromisoformat(self.started)
        ).total_seconds()

    @property
    def stamp(self) -> str:
        """Its start in UTC, as its key has it: `20261121T020000Z`."""
        return datetime.fromisoformat(self.started).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")

    def row(self, model: str) -> NightRow | None:
        """Return a model's row; None where the night had none."""
        return next((row for row in self.rows if row.model == model), None)

    def to_bytes(self) -> bytes:
        """Return the canonical form: JSON with sorted keys, no spaces, UTF-8, one final newline."""
        return canonical_bytes(self)


def parse_night(data: bytes, what: str) -> Night:
    """Return the night in `data`; raise `StoreFailed`, naming `what`, where there is none."""
    try:
        return from_plain(Night, parse_json(data), "night")
    except (ValueError, RecordInvalid) as error:
        raise StoreFailed(
            f"{what} is no night's record", expected=f"one of schema {SCHEMA}",
            got=str(error)[:300],
            remedy="Use a Handoff that is as new as the one that wrote it, or remove that file",
        ) from error  # fmt: skip


def write_night(store: Store, night: Night) -> str:
    """Keep a night's record; return its key. Keeping the same record again changes nothing.

    Raises `StoreFailed` where another night has started in the same second.
    """
    key = night_key(night.stamp)
    if not store.create(key, night.to_bytes()):
        raise StoreFailed(
            f"{key} is there already", expected="a night of its own", got="another night's record",
            remedy="Run one night at a time for one store; nothing was written",
        )  # fmt: skip
    return key


def read_nights(store: Store, last: int) -> tuple[Night, ...]:
    """Return the newest `last` nights, oldest first; raise `StoreFailed` for one that's none."""
    keys = sorted(stored.key for stored in store.keys(NIGHTS) if _KEY.fullmatch(stored.key))
    nights = []
    for key in keys[max(0, len(keys) - last) :]:
        data = store.read(key, NIGHT_LIMIT_BYTES)
        # Removed since it was listed: then there is none.
        if data is not None:
            nights.append(parse_night(data, key))
    return tuple(nights)


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
