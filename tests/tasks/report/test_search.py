"""The picture of a search: every timed variant with its name, and the same bytes each time."""

from __future__ import annotations

import re
from dataclasses import replace

from handoff.artifacts.release.evidence import Candidate
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.report.numbers import draw_search, search_columns, search_rows
from tests.artifacts.samples import sample_metric, sample_target

TIMED = tuple(
    Candidate(
        name, accepted=True, compile_s=9.0, size_bytes=48_000_000, max_abs=error,
        times_s=(1.0,), ratios=(ratio,), ratios_low=(ratio - 0.1,), ratios_high=(ratio + 0.1,),
    )
    for name, ratio, error in (
        ("plain", 1.0, 1e-7), ("freezing", 1.4, 3e-7), ("bfloat16", 2.9, 1e-2), ("exact", 0.9, 0.0),
    )
)  # fmt: skip
CRASHED = Candidate("max-autotune", accepted=False, reasons=("it crashed",))


def searched(*candidates: Candidate) -> TargetRecord:
    return replace(sample_target("cpu-avx2"), candidates=candidates, chosen="bfloat16")


def test_every_timed_variant_is_drawn_and_what_crashed_is_not() -> None:
    picture = draw_search("search", searched(*TIMED, CRASHED))
    assert picture is not None
    words = re.findall(r">([^<>]+)</text>", picture.svg)
    assert {"plain", "freezing", "bfloat16", "exact", "shipped"} <= set(words)
    assert "max-autotune" not in words
    assert words.count("shipped") == 1
    assert draw_search("search", searched(*TIMED, CRASHED)) == picture


def test_a_picture_follows_the_pages_colours_and_says_its_numbers_plainly() -> None:
    picture = draw_search("search", searched(*TIMED))
    assert picture is not None
    assert "var(--first)" in picture.svg
    assert not re.search(r"#[0-9a-f]{6}\b", picture.svg), "every colour is one of the page's"
    assert "mathdefault" not in picture.svg


def test_a_search_that_timed_the_plain_package_alone_has_no_picture() -> None:
    assert draw_search("search", searched(TIMED[0], CRASHED)) is None


def test_a_row_tells_the_ratio_at_each_size() -> None:
    three = Candidate(
        "three", accepted=True, times_s=(2.0, 1.5, 1.0), ratios=(0.5, 1.0, 3.0),
        ratios_low=(0.4, 0.9, 2.9), ratios_high=(0.6, 1.1, 3.1),
    )  # fmt: skip
    (row,) = search_rows(searched(three))
    assert row[2:5] == ("0.50 (0.40 to 0.60)", "not known (0.90 to 1.10)", "3.00 (2.90 to 3.10)")
    assert len(row) == len(search_columns(searched(three)))


def test_a_record_from_before_the_example_was_raced_has_two_sizes() -> None:
    two = replace(TIMED[1], ratios=(0.5, 3.0), ratios_low=(0.4, 2.9), ratios_high=(0.6, 3.1))
    (row,) = search_rows(searched(two))
    assert row[2:5] == ("0.50 (0.40 to 0.60)", "-", "3.00 (2.90 to 3.10)")
    assert search_rows(searched(CRASHED))[0][2:5] == ("-", "-", "-")


def test_what_is_lost_of_a_metric_has_a_column_where_there_is_one() -> None:
    plain = searched(*TIMED)
    assert "metric" not in search_columns(plain)
    judged = searched(TIMED[0], replace(TIMED[2], metric=sample_metric(0.965)))
    place = search_columns(judged).index("metric")
    rows = search_rows(judged)
    assert [row[place] for row in rows] == ["-", "top-1 0.965, at most 0.0100 lost"]
    assert all(len(row) == len(search_columns(judged)) for row in rows)
