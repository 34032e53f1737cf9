"""Pages about several versions: what differs between two, and a model over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.night import Night, NightRow
from handoff.artifacts.release.ledger import LedgerEntry, Pointer
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.report.versions_page import NamedVersion, render_difference, render_history
from tests.artifacts.samples import sample_manifest
from tests.tasks.report.samples import Page, full_manifest, searched_target

HOSTILE = "<script>alert(1)</script>"
DIGEST = digest_bytes(b"x")


def version(number: int, commit: str = "0123abcd", **changes: Any) -> Manifest:
    """A version's record, of another speed and error than the one before."""
    target = searched_target()
    timing = replace(target.timings[-1], case="batch=8 example=0", speedup=1.0 + number)
    timing = replace(timing, speedup_low=0.95 + number, speedup_high=1.05 + number)
    manifest = full_manifest(replace(target, timings=(timing,)))
    lineage = replace(manifest.lineage, commit=commit)
    return replace(
        manifest, lineage=lineage, created=f"2026-11-2{number}T02:00:00+00:00", **changes
    )


def entry(sequence: int, action: str, number: int, newest: int, alias: str) -> LedgerEntry:
    """A ledger's entry; candidates are moved by releases, production by the rest."""
    return LedgerEntry(
        "toy", sequence, "", action, number, DIGEST, DIGEST, DIGEST, alias, None,  # type: ignore[arg-type]
        {alias: Pointer(number, DIGEST, action, sequence)}, newest, "ann@training",  # type: ignore[arg-type]
        f"2026-11-2{sequence}T03:00:00+00:00", "nonce", reason=f"because of {sequence}",
    )  # fmt: skip


def test_two_versions_stand_side_by_side_with_what_differs() -> None:
    before = NamedVersion("toy@1", version(1))
    toolchain = {**before.manifest.toolchain, "torch": "2.16.0"}
    after = NamedVersion("toy@2", version(2, "4567cdef", toolchain=toolchain))
    words = Page(render_difference(before, after)).words
    assert "toy@1 and toy@2" in words
    assert "commit 0123abcd" in words
    assert "commit 4567cdef" in words
    figures = words[words.index("Numbers, speed, size") : words.index("Each as it was measured")]
    assert figures.index("toy@1 accepted") < figures.index("2.00 (1.95 to 2.05)")
    assert figures.index("toy@2 accepted") < figures.index("3.00 (2.95 to 3.05)")
    assert words.index("Source") < words.index("Toolchain")
    assert "2.16.0" in words
    assert "The same in both: contract, passes, recipe." in words


def test_a_target_that_one_of_two_lacks_is_said_to_be_lacking() -> None:
    wider = full_manifest(searched_target(), searched_target("cpu-avx512"))
    pages = render_difference(NamedVersion("toy@1", version(1)), NamedVersion("toy@2", wider))
    assert "cpu-avx512 toy@1 no such target" in Page(pages).words


def test_equal_versions_differ_in_nothing() -> None:
    page = render_difference(*(NamedVersion(f"toy@{n}", version(1)) for n in (1, 2)))
    assert "They differ in nothing but when they were made." in Page(page).words


def test_a_model_over_time_shows_versions_what_served_and_nights() -> None:
    entries = (
        entry(1, "release", 1, 1, "candidate"),
        entry(2, "promote", 1, 1, "production"),
        entry(3, "release", 2, 2, "candidate"),
        entry(4, "promote", 2, 2, "production"),
        entry(5, "rollback", 1, 2, "production"),
    )
    row = NightRow("toy", "refused", 1, None, "wrong by 3")
    other = NightRow("other", "kept", 1, 2, "of no concern here")
    night = Night(
        "2026-11-24", "2026-11-24T02:00:00+00:00", "2026-11-24T03:00:00+00:00", rows=(other, row)
    )
    versions = {1: version(1), 2: version(2, "4567cdef")}
    text = render_history("toy", entries, versions, (night,))
    page = Page(text)
    assert "2 versions; production: version 1" in page.words
    assert "version 2, error" in text
    served = page.words[page.words.index("What was in production") : page.words.index("Nights")]
    rollback, second, first = (served.index(f"because of {n}") for n in (5, 4, 2))
    assert rollback < second < first
    assert "2 2026-11-24 03:00:00 UTC 2026-11-25 03:00:00 UTC promote" in served
    assert "1 2026-11-25 03:00:00 UTC now rollback" in served
    assert "2026-11-24 refused 1 - wrong by 3" in page.words
    assert "of no concern here" not in page.words
    assert len(page.pictures) == 1


def test_a_model_without_versions_nights_or_production_makes_a_page() -> None:
    page = Page(render_history("toy", (entry(1, "release", 1, 1, "candidate"),), {}, ()))
    assert "No version was measured" in page.words
    assert "1 older or retired ones are left out." in page.words
    assert "Nothing yet: handoff promote puts it there." in page.words
    assert "No night has looked at it." in page.words


def test_what_a_delivery_or_a_reason_says_stays_text() -> None:
    hostile = version(1, HOSTILE)
    said = replace(entry(1, "promote", 1, 1, "production"), reason=HOSTILE)
    for text in (
        render_difference(NamedVersion("toy@1", hostile), NamedVersion("toy@2", version(2))),
        render_history("toy", (said,), {1: hostile}, ()),
    ):
        assert "script" not in Page(text).tags
        assert "&lt;script&gt;" in text


def test_the_same_records_give_the_same_page() -> None:
    entries = (entry(1, "release", 1, 1, "candidate"),)
    pages = {render_history("toy", entries, {1: sample_manifest()}, ()) for _ in range(2)}
    assert len(pages) == 1
