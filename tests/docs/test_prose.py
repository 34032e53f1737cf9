"""The style of pages, docstrings, comments and messages: no phrase that has a common word."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

RULES_FILE = Path(__file__).with_name("words.toml")
# What people read of the product: the tests' own words are for their authors.
READ = ("artifacts", "docs", "examples", "flows", "infra", "tasks")
_TEXTS = {".md", ".toml", ".j2", ".h", ".cpp", ".yaml", ".rst", ".cmake"}
_TOKENS = {
    tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A pattern, what to write in its place, and examples of both."""

    pattern: re.Pattern[str]
    write: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]


def rules() -> list[Rule]:
    tables = tomllib.loads(RULES_FILE.read_text(encoding="utf-8"))["rule"]
    return [
        Rule(
            re.compile(one["pattern"].replace(" ", r"\s+(?:(?:#|//)\s+)?"), re.MULTILINE),
            one["write"], tuple(one["wrong"]), tuple(one["right"]),
        )
        for one in tables
    ]  # fmt: skip


RULES = rules()


def pages() -> list[Path]:
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", *READ, "*.md"]
    kept = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\n")
    files = [ROOT / name for name in kept if Path(name).suffix in {*_TEXTS, ".py"}]
    return sorted({path for path in files if path.is_file() and not path.is_symlink()})


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """Give what people read in a file, with its first line: of Python's no code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        # Code between backticks is somebody else's word.
        yield 1, re.sub(r"`[^`\n]+`", "`", text) if path.suffix == ".md" else text
        return
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _TOKENS:
            continue
        line = token.start[0]
        if (
            token.type == tokenize.COMMENT
            and comments
            and comments[-1][0] + comments[-1][1].count("\n") + 1 == line
        ):
            comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{token.string}")
        elif token.type == tokenize.COMMENT:
            comments.append((line, token.string))
        else:
            yield line, token.string
    yield from comments


def found_in(path: Path) -> Iterator[str]:
    for first, passage in passages(path):
        for rule in RULES:
            for match in rule.pattern.finditer(passage):
                line = first + passage[: match.start()].count("\n")
                said = " ".join(match[0].split())
                place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                yield f"{place}:{line}: {said!r}: write {rule.write}"


def test_what_people_read_has_the_common_words() -> None:
    assert [problem for path in pages() for problem in found_in(path)] == []


# `make reference` writes the other one.
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "recipe-reference.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_whom_it_is_for_and_ends_with_what_can_go_wrong(page: Path) -> None:
    _, first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert re.match("For [a-z]", first)
    headings = re.findall(r"(?m)^## (.*)$", page.read_text(encoding="utf-8"))
    assert headings[-1] == "What can go wrong"


def test_every_kind_of_text_is_read() -> None:
    kinds = {path.suffix for path in pages()}
    assert {".md", ".py", ".toml", ".j2", ".h", ".cpp", ".yaml"} <= kinds
    assert ROOT / "README.md" in pages()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.write)
def test_a_rule_finds_what_it_is_for_and_nothing_else(rule: Rule) -> None:
    assert [text for text in rule.wrong if not rule.pattern.search(text)] == []
    assert [text for text in rule.right if rule.pattern.search(text)] == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("page.md", "One.\nFaster for\nsure.\n", [2]),
        ("page.md", "One.\n`for sure`\n", []),
        ("code.py", '"""Say.\n\nFaster for sure.\n"""\n', [3]),
        ("code.py", "# Faster for\n# sure.\n", [1]),
        ("code.py", 'message = f"{1} faster for sure"\n', [1]),
        ("code.py", "for_sure = 1\n", []),
        ("code.h", "// Faster for\n// sure.\n", [1]),
    ],
)
def test_a_phrase_is_found_with_its_line(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    (tmp_path / name).write_text(text)
    problems = [
        problem.removeprefix(f"{tmp_path / name}:") for problem in found_in(tmp_path / name)
    ]
    assert [int(problem.partition(":")[0]) for problem in problems] == lines
