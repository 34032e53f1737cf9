"""`handoff explain`: one code in full, or the list of all; and the hint that names it elsewhere."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import asdict

from handoff.artifacts.errors import HandoffError, UsageProblem, did_you_mean
from handoff.artifacts.recipe.choices import DEFAULT_PASSES
from handoff.artifacts.release.evidence import Finding
from handoff.infra.explaining.texts import (
    Explanation,
    Word,
    code_of,
    codes_in,
    explanations,
    find_explanation,
    find_word,
    words,
)
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo, styled
from handoff.tasks.optimize.recipe_names import declared_passes

_IN_A_RECIPE = (
    "The key 'passes' lists the passes that run, in their order: write the list without one to "
    "leave it out. 'broken_passes' says what happens to one that changes the numbers: it is left "
    "out, or the release refused; by default the latter for passes that the recipe names. 'handoff "
    "passes' lists all passes."
)
_WIDEST = 100
_HINTS = 3
_GRAVITY = {"unsound": 0, "limit": 1, "note": 2}
_HEADINGS = {
    "finding": "Findings of 'handoff inspect' and 'handoff release'",
    "error": "Errors, as --json names them",
    "exit code": "Exit codes",
}


def explain(code: str, *, as_json: bool) -> None:
    """Print what `code` means; without one, the list of all codes."""
    if not code:
        _list_all(as_json=as_json)
        return
    found = find_explanation(code)
    if found is None and (word := find_word(code)) is not None:
        _tell_word(word, as_json=as_json)
        return
    if found is None:
        named = [name for word in words() for name in word.names]
        known = {name.casefold(): name for name in (*explanations(), *declared_passes(), *named)}
        if code.casefold() in declared_passes():
            _explain_pass(code.casefold(), as_json=as_json)
            return
        meant = did_you_mean(code.casefold(), known, "Run 'handoff explain', or 'handoff passes'")
        raise UsageProblem(
            "there is no explanation of that",
            expected="a finding, an error, an exit code, a pass, or a table's title",
            got=code[:80],
            remedy=re.sub(r"(?<=^Did you mean ).+(?=\?$)", lambda m: known[m[0]], meant),
        )
    if as_json:
        print_json(_plain(found))
        return
    _tell(found)


def _explain_pass(name: str, *, as_json: bool) -> None:
    """Print what a pass says of itself, in its own docstring, and how a recipe names it."""
    told = declared_passes()[name]
    is_default = name in [choice.name for choice in DEFAULT_PASSES]
    if as_json:
        plain = {**asdict(told), "code": name, "kind": "pass", "default": is_default}
        print_json(plain)
        return
    when = "by default" if is_default else "where a recipe names it"
    echo(styled(name, bold=True), f" (a graph pass: runs {when})")
    title, *paragraphs = told.does.split("\n\n")
    _paragraph("", title)
    for paragraph in paragraphs:
        echo()
        _paragraph("", paragraph)
    if told.parameters:
        _paragraph("Parameters", "; ".join(f"{n}: {m}" for n, m in told.parameters.items()))
    _paragraph("In a recipe", _IN_A_RECIPE)


def _tell_word(word: Word, *, as_json: bool) -> None:
    if as_json:
        print_json(_plain_word(word))
        return
    echo(styled(", ".join(word.names), bold=True))
    _paragraph("", word.means)


def _plain_word(word: Word) -> dict[str, object]:
    return {"names": list(word.names), "kind": word.kind, "means": word.means}


def hint_for(findings: Iterable[Finding]) -> str:
    """Return the commands that say more of the gravest findings; empty for none."""
    ranked = sorted(findings, key=lambda finding: _GRAVITY[finding.severity])
    gravest = [f.code for f in ranked if f.severity == ranked[0].severity]
    return _hint(dict.fromkeys(gravest))


def hint_for_error(error: HandoffError) -> str:
    """Return the commands that say more of a refusal; empty where it says it all by itself."""
    if type(error) is UsageProblem:
        return ""
    return _hint(codes_in(error.got) or (code_of(error),))


def _hint(codes: Iterable[str]) -> str:
    return ", ".join([f"handoff explain {code}" for code in codes][:_HINTS])


def _plain(found: Explanation) -> dict[str, object]:
    return {**asdict(found), "shown_by": list(found.shown_by), "exit_code": found.exit_code}


def _width() -> int:
    return max(40, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def _tell(found: Explanation) -> None:
    about = {
        "finding": f"a finding: {found.severity}",
        "error": f"an error: exit code {found.exit_code}",
        "exit code": "an exit code",
    }[found.kind]
    echo(styled(found.code, bold=True), f" ({about})")
    _paragraph("", found.title[:1].upper() + found.title[1:] + ".")
    _paragraph("What it is", found.means)
    _paragraph("Why it matters", found.matters)
    _paragraph("What to do", found.fix)
    echo("\n", styled("For example", bold=True))
    lines = found.example.strip("\n").splitlines()
    if found.kind == "finding":
        commands = ["python example.py", *found.shown_by, "handoff inspect folder"]
        lines = ["# example.py", *lines, "", *(f"$ {command}" for command in commands)]
    for line in lines:
        echo(f"    {line}".rstrip())


def _paragraph(heading: str, text: str) -> None:
    if heading:
        echo("\n", styled(heading, bold=True))
    for line in textwrap.wrap(text, _width() - 2, break_on_hyphens=False):
        echo(f"  {line}")


def _list_all(*, as_json: bool) -> None:
    known = explanations().values()
    if as_json:
        glossary = [_plain_word(word) for word in words()]
        print_json({"explanations": [_plain(one) for one in known], "words": glossary})
        return
    for kind, heading in _HEADINGS.items():
        ours = [one for one in known if one.kind == kind]
        echo(styled(heading, bold=True))
        wide = max(len(one.code) for one in ours) + 2
        for one in ours:
            about = one.severity or (f"exit {one.exit_code}" if kind == "error" else "")
            text = f"{one.title} ({about})" if about else one.title
            indent = " " * (wide + 2)
            told = textwrap.wrap(text, _width() - len(indent), break_on_hyphens=False)
            echo(f"  {one.code:{wide}}{told[0]}")
            for line in told[1:]:
                echo(indent + line)
        echo()
    echo(styled("Words of pages, tables and reports", bold=True))
    _paragraph("", ", ".join(name for word in words() for name in word.names))
    echo()
    echo("handoff explain CODE tells what one means, an example of it, and what to do")
