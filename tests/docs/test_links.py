"""Each link of a page leads somewhere, without asking a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors_of, linking, links_of

PAGES = linking()


def dead_links(page: Path, root: Path = ROOT) -> list[str]:
    """Return the links of a page that lead to no file in `root`, or to no heading of a page."""
    dead = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.is_relative_to(root) and target.exists()
        if not there or (anchor and anchor not in anchors_of(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert dead_links(page) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for link in links_of(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert set((ROOT / "docs").rglob("*.md")) <= reached


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text(
        "# One `[thing]`, and another\n\n# Twice\n\n# Twice\n\n```\n# no heading\n```\n"
    )
    good = ["other.md", "other.md#one-thing-and-another", "other.md#twice-1", "#here"]
    dead = ["nowhere.md", "other.md#twice-2", "other.md#no-heading", "#there", "../beyond.md"]
    (tmp_path.parent / "beyond.md").write_text("")
    page.write_text("# Here\n\n" + " ".join(f"[text]({link})" for link in [*good, *dead]))
    assert dead_links(page, tmp_path) == dead
