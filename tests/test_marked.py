"""What a measurement is written between: asked for before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marked import require_marks, text_between_marks, write_between_marks

_PAGE = "before <!-- night: begin -->\nold\n<!-- night: end --> after\n"


def test_what_was_measured_takes_the_place_of_what_stood_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(_PAGE)
    require_marks(page, "night")
    write_between_marks(page, "night", "new")
    assert text_between_marks(page, "night") == "\nnew\n"
    assert page.read_text() == _PAGE.replace("old", "new")


@pytest.mark.parametrize("text", ["", _PAGE.replace("night: end", "day: end"), None])
def test_a_page_without_the_marks_is_told_before_anything_is_measured(
    text: str | None, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    with pytest.raises(SystemExit, match="expected the marks <!-- night: begin -->"):
        require_marks(page, "night")


def test_without_a_page_nothing_is_asked_for() -> None:
    require_marks(None, "night")
