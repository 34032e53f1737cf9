"""The pages of the repository: fenced blocks with their marks, links, anchors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"<!-- example: (?P<kind>[a-z-]+)(?: (?P<argument>[^>]+?))? -->\s*")
_PARSER = MarkdownIt("commonmark").enable("table")


def documents() -> list[Path]:
    """Return the pages at the top, those of `docs/` and the READMEs: their blocks are marked."""
    readmes = [page for room in ("infra", "tests") for page in (ROOT / room).rglob("README.md")]
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(readmes)]


def linking() -> list[Path]:
    """Return all pages of the repository, the documents first."""
    others = {p for room in ("infra", "tests", "examples") for p in (ROOT / room).rglob("*.md")}
    return [*documents(), *sorted(others - set(documents()))]


@dataclass(frozen=True)
class Block:
    """A fenced block, and how the comment above it says that it is checked; `kind` '' without."""

    page: Path
    line: int
    language: str
    text: str
    kind: str = ""
    argument: str = ""

    @property
    def place(self) -> str:
        """Where it stands, for a message."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page, in order."""
    return tuple(read_blocks(page, page.read_text(encoding="utf-8")))


def read_blocks(page: Path, text: str) -> Iterator[Block]:
    """Give the fenced blocks in `text`, which is the page's."""
    before: Token | None = None
    for token in _PARSER.parse(text):
        if token.type == "fence":
            assert token.map is not None
            mark = _MARK.fullmatch(before.content) if before else None
            adjacent = mark and before and before.map and before.map[1] == token.map[0]
            kind, argument = (mark["kind"], mark["argument"]) if mark and adjacent else ("", "")
            yield Block(
                page, token.map[0] + 1, token.info.strip(), token.content, kind, argument or ""
            )
        before = token if token.type == "html_block" else None


def all_blocks() -> list[Block]:
    """Return the blocks of all documents."""
    return [block for page in documents() for block in blocks_of(page)]


def _inline(text: str) -> Iterator[Token]:
    for token in _PARSER.parse(text):
        yield from token.children or ()


def code_spans(page: Path) -> list[str]:
    """Return what stands between backticks in a page's text and tables."""
    found = _inline(page.read_text(encoding="utf-8"))
    return [token.content for token in found if token.type == "code_inline"]


def links_of(page: Path) -> list[str]:
    """Return where a page's links and pictures lead, but for addresses beyond the repository."""
    found = [
        str(token.attrGet("href") or token.attrGet("src"))
        for token in _inline(page.read_text(encoding="utf-8"))
        if token.type in ("link_open", "image")
    ]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as a repository's browser makes them."""
    tokens = _PARSER.parse(page.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    anchors = set()
    for heading, content in pairwise(tokens):
        if heading.type != "heading_open":
            continue
        title = "".join(token.content for token in content.children or ())
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(anchors)
