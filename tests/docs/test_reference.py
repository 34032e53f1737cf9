"""The reference of recipes is what the models say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from handoff.infra.documenting.findings import draw_findings
from handoff.infra.documenting.folders import draw_folders
from handoff.infra.documenting.recipe_reference import field_meanings, write_reference
from tests.docs.pages import ROOT


def test_the_committed_reference_is_what_the_models_say() -> None:
    committed = (ROOT / "docs" / "recipe-reference.md").read_text(encoding="utf-8")
    assert committed == write_reference(), "run 'make reference', and commit what it writes"


@dataclass(frozen=True)
class Half:
    described: int = 0
    """What it is."""
    undescribed: int = 0


def test_a_field_that_nothing_is_said_of_is_refused() -> None:
    with pytest.raises(ValueError, match=r"each field of Half, got none for undescribed"):
        field_meanings(Half)


def test_the_picture_of_the_folders_is_what_there_is() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert draw_folders() in page, "run 'make reference', and commit what it writes"


def test_the_findings_are_told_in_the_words_of_explain() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert draw_findings() in page, "run 'make reference', and commit what it writes"
