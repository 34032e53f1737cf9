"""The explanations of findings, errors and exit codes: data in TOML, looked up by their codes."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from handoff.artifacts.errors import ERRORS, HandoffError

Kind = Literal["finding", "error", "exit code"]
_FILES: dict[Kind, str] = {
    "finding": "findings.toml",
    "error": "errors.toml",
    "exit code": "exit_codes.toml",
}


@dataclass(frozen=True)
class Explanation:
    """What a code means, why it matters, what causes it in the least, and what to do about it.

    `severity` is a finding's. `example` is a Python program for a finding, which leaves a delivery
    in the folder `folder` once the commands `shown_by` have run, too; else a line.
    """

    code: str
    kind: Kind
    title: str
    means: str
    matters: str
    fix: str
    example: str
    severity: str = ""
    shown_by: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """The exit code that a command ends with for an error; None for a finding."""
        if self.kind == "exit code":
            return int(self.code)
        return None if self.kind == "finding" else ERRORS.get(self.code, HandoffError).exit_code


@cache
def explanations() -> dict[str, Explanation]:
    """Return every explanation by its code: findings first, then errors, then exit codes."""
    by_code = {}
    for kind, name in _FILES.items():
        text = (Path(__file__).parent / name).read_text(encoding="utf-8")
        for code, plain in tomllib.loads(text).items():
            shown_by = tuple(plain.pop("shown_by", ()))
            by_code[code] = Explanation(code, kind, shown_by=shown_by, **plain)
    return by_code


def find_explanation(code: str) -> Explanation | None:
    """Return the explanation of `code`, None for an unknown one.

    It may be written in any way that keeps its letters: `delivery-unsound`, `exit-2`.
    """
    folded = _fold(code)
    for known, explanation in explanations().items():
        if _fold(known) == folded:
            return explanation
    return None


@dataclass(frozen=True)
class Word:
    """A word of pages, tables and reports, by all its `names`; a `concept` or a `title` of those.

    `see` is a link of the glossary's page.
    """

    names: tuple[str, ...]
    means: str
    kind: str
    see: str = ""


@cache
def words() -> tuple[Word, ...]:
    """Return the glossary: concepts first, then the titles of tables and figures."""
    text = (Path(__file__).parent / "words.toml").read_text(encoding="utf-8")
    plain = tomllib.loads(text)
    return tuple(
        Word(tuple(entry["names"]), entry["means"], kind, entry.get("see", ""))
        for kind in ("concept", "title")
        for entry in plain[kind]
    )


def find_word(name: str) -> Word | None:
    """Return the word that `name` is; small and capital letters, hyphens and marks are alike."""
    folded = _fold(name)
    matches = (one for one in words() if folded and folded in map(_fold, one.names))
    return next(matches, None)


def code_of(error: HandoffError) -> str:
    """Return the code of an error: the name of its class, or of the nearest that is explained."""
    names = (kind.__name__ for kind in type(error).__mro__)
    return next(name for name in names if name in explanations())


def codes_in(text: str) -> tuple[str, ...]:
    """Return the findings that a sentence names in brackets, each once."""
    bracketed = re.findall(r"\[([a-z0-9-]{1,40})\]", text)
    findings = {code for code, entry in explanations().items() if entry.kind == "finding"}
    return tuple(dict.fromkeys(code for code in bracketed if code in findings))


def _fold(code: str) -> str:
    folded = re.sub(r"[^a-z0-9]", "", code.lower())
    return re.sub(r"^exit(code)?(?=[0-9])", "", folded)
