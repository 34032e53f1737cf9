"""A night's record: read back as it was written, kept once, and its outcome given by its rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.night import (
    OUTCOMES,
    Night,
    NightRow,
    Outcome,
    parse_night,
    read_nights,
    write_night,
)
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.comparison import (
    Comparison,
    InterleavedTiming,
    OutputErrors,
    PackageFigures,
)
from handoff.artifacts.release.interval import Interval
from handoff.artifacts.stores.store import open_store
from tests.artifacts.nights import busy_night, comparison, figures, month, night

numbers = st.floats(allow_nan=False, width=32)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
intervals = st.builds(Interval, numbers, numbers, numbers)
packages = st.builds(
    PackageFigures,
    target=st.sampled_from(["cpu-avx2", "cuda-sm90"]),
    version=st.integers(0, 99),
    basis=st.sampled_from(["measured", "recorded"]),
    torch=texts,
    rmse_ratio=st.none() | numbers,
    speed=st.none() | intervals,
    size_bytes=st.integers(0, 2**40),
    compile_s=numbers,
    reused=st.sampled_from(["", "code", "package"]),
    why=texts,
)
errors = st.builds(
    OutputErrors, texts, st.integers(0, 2**40), numbers, st.none() | numbers, st.none() | numbers,
    st.none() | numbers,
)  # fmt: skip
heats = st.builds(
    InterleavedTiming, texts, st.integers(1, 200), st.integers(1, 64), numbers, st.none() | numbers,
    st.none() | numbers, st.none() | intervals, st.none() | intervals, st.none() | intervals,
)  # fmt: skip
comparisons = st.builds(
    Comparison, texts, packages, packages, st.lists(errors, max_size=2).map(tuple),
    st.lists(heats, max_size=2).map(tuple), st.sampled_from(["better", "equal", "worse"]),
    st.lists(texts, max_size=2).map(tuple),
)  # fmt: skip
rows = st.builds(
    NightRow,
    st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True),
    st.sampled_from(OUTCOMES),
    st.none() | st.integers(1, 99),
    st.none() | st.integers(1, 99),
    texts,
    st.lists(comparisons, max_size=1).map(tuple),
    st.floats(0, 1e6),
    st.lists(packages, max_size=1).map(tuple),
)
moments = st.datetimes(
    datetime(2026, 1, 1),
    datetime(2036, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
nights = st.builds(
    lambda at, minutes, toolchain, found: Night(
        date=at.date().isoformat(),
        started=at.isoformat(),
        ended=(at + timedelta(minutes=minutes)).isoformat(),
        toolchain=toolchain,
        rows=tuple(sorted(found, key=lambda row: row.model)),
    ),
    moments, st.integers(0, 900), st.dictionaries(texts, texts, max_size=2),
    st.lists(rows, max_size=4, unique_by=lambda row: row.model),
)  # fmt: skip


@given(nights)
def test_a_night_reads_back_as_it_was_written_and_has_one_form(one: Night) -> None:
    data = one.to_bytes()
    again = parse_night(data, "it")
    assert again == one
    assert again.to_bytes() == data
    assert from_plain(Night, to_plain(one)) == one


@given(nights)
def test_the_summary_counts_every_row_once_and_alarms_for_what_went_wrong(one: Night) -> None:
    assert sum(one.counts.values()) == len(one.rows)
    wrong = sum(one.counts.get(name, 0) for name in ("refused", "failed", "crashed"))
    assert one.exit_status == (1 if wrong else 0)


def test_a_night_of_schema_1_is_still_read() -> None:
    # Written once and kept: stores in the field hold nights like it.
    data = (Path(__file__).parents[1] / "golden" / "night-1.json").read_bytes()
    one = parse_night(data, "the golden night")
    assert (one.schema, one.exit_status, len(one.rows)) == (1, 1, 14)
    assert one.to_bytes() == data


@given(st.binary(max_size=100))
def test_what_is_no_night_is_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(StoreFailed, match="nights/x is no night's record"):
        parse_night(data, "nights/x")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b'"schema":1', b'"schema":2', "got night: 2 instead of a night's record of schema 1"),
        (b'"date":"2026', b'"date":"20X6', "Invalid isoformat"),
        (b"+00:00", b"", "with a time zone"),
        (b'"model":"bert"', b'"model":"zebra"', "in the order of their names"),
        (b'"model":"bert"', b'"model":"gpt2"', "one row for each model"),
        (b'"crashed"', b'"exploded"', "one of 'replaced', 'kept'"),
    ],
)
def test_a_record_that_can_not_be_right_is_refused(old: bytes, new: bytes, match: str) -> None:
    data = busy_night().to_bytes()
    assert old in data
    with pytest.raises(StoreFailed, match=match):
        parse_night(data.replace(old, new), "it")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("unchanged", 0), ("replaced", 0), ("kept", 0), ("skipped", 0), ("refused", 1),
     ("failed", 1), ("crashed", 1)],
)  # fmt: skip
def test_the_exit_status_is_that_of_the_worst_row(outcome: Outcome, status: int) -> None:
    assert night(1, NightRow("a", "unchanged"), NightRow("b", outcome)).exit_status == status


def test_the_models_to_look_at_are_those_that_something_happened_to() -> None:
    assert busy_night().eventful == (
        "bert", "gpt2", "recommender", "resnet18", "whisper-encoder",
    )  # fmt: skip


def test_what_is_served_afterwards_is_the_new_version_only_where_it_replaced_the_old() -> None:
    old, new = figures(6, 1.4), figures(7, 1.6)
    row = NightRow("toy", "replaced", 6, 7, comparisons=(comparison(old, new),))
    assert (row.served_version, row.served_figures) == (7, (new,))
    kept = replace(row, outcome="kept")
    assert (kept.served_version, kept.served_figures) == (6, (old,))
    with_served = replace(kept, served=(new,))
    assert with_served.served_figures == (new,)


def test_nights_are_kept_once_each_and_read_back_oldest_first(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    made = month()
    for one in reversed(made):
        write_night(store, one)
    assert write_night(store, made[0]) == "nights/20261020T020000Z.json", "again is no harm"
    assert read_nights(store, 5) == made[-5:]
    assert read_nights(store, 1000) == made
    assert read_nights(store, 0) == ()
    with pytest.raises(StoreFailed, match="another night's record"):
        write_night(store, replace(made[0], rows=()))
    assert read_nights(store, 1000) == made


def test_a_night_that_began_elsewhere_is_kept_by_its_moment_in_utc() -> None:
    one = replace(night(1), started="2026-11-21T02:00:00+02:00", ended="2026-11-21T03:00:00+02:00")
    assert (one.stamp, one.seconds) == ("20261121T000000Z", 3600.0)


def test_what_lies_beside_the_nights_is_left_alone_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path / "store"))
    write_night(store, busy_night())
    store.replace("nights/README.md", b"what this is")
    assert read_nights(store, 9) == (busy_night(),)
    store.replace("nights/20261121T020000Z.json", b"{}")
    with pytest.raises(StoreFailed, match=r"nights/20261121T020000Z\.json is no night's record"):
        read_nights(store, 9)
