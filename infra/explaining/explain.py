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
from handoff.infra.explaining.explanations import (
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
_MAX_WIDTH = 100
_MAX_HINTS = 3
_SEVERITY_RANK = {"unsound": 0, "limit": 1, "note": 2}
_HEADINGS = {
    "finding": "Findings of 'handoff inspect' and 'handoff release'",
    "error": "Errors, as --json names them",
    "exit code": "Exit codes",
}


def explain(code: str, *, as_json: bool) -> None:
    """Print what `code` means; without one, the list of all codes."""
    if not code:
        _print_all(as_json=as_json)
        return
    explanation = find_explanation(code)
    if explanation is None and (word := find_word(code)) is not None:
        _print_word(word, as_json=as_json)
        return
    if explanation is None:
        titles = [name for word in words() for name in word.names]
        known = {name.casefold(): name for name in (*explanations(), *declared_passes(), *titles)}
        if code.casefold() in declared_passes():
            _print_pass(code.casefold(), as_json=as_json)
            return
        suggestion = did_you_mean(
            code.casefold(), known, "Run 'handoff explain', or 'handoff passes'"
        )
        raise UsageProblem(
            "there is no explanation of that",
            expected="a finding, an error, an exit code, a pass, or a table's title",
            got=code[:80],
            remedy=re.sub(r"(?<=^Did you mean ).+(?=\?$)", lambda m: known[m[0]], suggestion),
        )
    if as_json:
        print_json(_to_plain(explanation))
        return
    _print_explanation(explanation)


def _print_pass(name: str, *, as_json: bool) -> None:
    """Print what a pass says of itself, in its own docstring, and how a recipe names it."""
    declared = declared_passes()[name]
    is_default = name in [choice.name for choice in DEFAULT_PASSES]
    if as_json:
        plain = {**asdict(declared), "code": name, "kind": "pass", "default": is_default}
        print_json(plain)
        return
    runs = "by default" if is_default else "where a recipe names it"
    echo(styled(name, bold=True), f" (a graph pass: runs {runs})")
    title, *paragraphs = declared.does.split("\n\n")
    _print_paragraph("", title)
    for paragraph in paragraphs:
        echo()
        _print_paragraph("", paragraph)
    if declared.parameters:
        _print_paragraph(
            "Parameters", "; ".join(f"{n}: {m}" for n, m in declared.parameters.items())
        )
    _print_paragraph("In a recipe", _IN_A_RECIPE)


def _print_word(word: Word, *, as_json: bool) -> None:
    if as_json:
        print_json(_word_to_plain(word))
        return
    echo(styled(", ".join(word.names), bold=True))
    _print_paragraph("", word.means)


def _word_to_plain(word: Word) -> dict[str, object]:
    return {"names": list(word.names), "kind": word.kind, "means": word.means}


def hint_for(findings: Iterable[Finding]) -> str:
    """Return the commands that say more of the gravest findings; empty for none."""
    ranked = sorted(findings, key=lambda finding: _SEVERITY_RANK[finding.severity])
    gravest = [f.code for f in ranked if f.severity == ranked[0].severity]
    return _hint_commands(dict.fromkeys(gravest))


def hint_for_error(error: HandoffError) -> str:
    """Return the commands that say more of a refusal; empty where it says it all by itself."""
    if type(error) is UsageProblem:
        return ""
    return _hint_commands(codes_in(error.got) or (code_of(error),))


def _hint_commands(codes: Iterable[str]) -> str:
    return ", ".join([f"handoff explain {code}" for code in codes][:_MAX_HINTS])


def _to_plain(explanation: Explanation) -> dict[str, object]:
    return {
        **asdict(explanation),
        "shown_by": list(explanation.shown_by),
        "exit_code": explanation.exit_code,
    }


def _width() -> int:
    return max(40, min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 24)).columns))


def _print_explanation(explanation: Explanation) -> None:
    kind = {
        "finding": f"a finding: {explanation.severity}",
        "error": f"an error: exit code {explanation.exit_code}",
        "exit code": "an exit code",
    }[explanation.kind]
    echo(styled(explanation.code, bold=True), f" ({kind})")
    _print_paragraph("", explanation.title[:1].upper() + explanation.title[1:] + ".")
    _print_paragraph("What it is", explanation.means)
    _print_paragraph("Why it matters", explanation.matters)
    _print_paragraph("What to do", explanation.fix)
    echo("\n", styled("For example", bold=True))
    lines = explanation.example.strip("\n").splitlines()
    if explanation.kind == "finding":
        commands = ["python example.py", *explanation.shown_by, "handoff inspect folder"]
        lines = ["# example.py", *lines, "", *(f"$ {command}" for command in commands)]
    for line in lines:
        echo(f"    {line}".rstrip())


def _print_paragraph(heading: str, text: str) -> None:
    if heading:
        echo("\n", styled(heading, bold=True))
    for line in textwrap.wrap(text, _width() - 2, break_on_hyphens=False):
        echo(f"  {line}")


def _print_all(*, as_json: bool) -> None:
    all_explanations = explanations().values()
    if as_json:
        glossary = [_word_to_plain(word) for word in words()]
        print_json(
            {"explanations": [_to_plain(entry) for entry in all_explanations], "words": glossary}
        )
        return
    for kind, heading in _HEADINGS.items():
        entries = [entry for entry in all_explanations if entry.kind == kind]
        echo(styled(heading, bold=True))
        width = max(len(entry.code) for entry in entries) + 2
        for entry in entries:
            note = entry.severity or (f"exit {entry.exit_code}" if kind == "error" else "")
            text = f"{entry.title} ({note})" if note else entry.title
            indent = " " * (width + 2)
            lines = textwrap.wrap(text, _width() - len(indent), break_on_hyphens=False)
            echo(f"  {entry.code:{width}}{lines[0]}")
            for line in lines[1:]:
                echo(indent + line)
        echo()
    echo(styled("Words of pages, tables and reports", bold=True))
    _print_paragraph("", ", ".join(name for word in words() for name in word.names))
    echo()
    echo("handoff explain CODE tells what one means, an example of it, and what to do")
