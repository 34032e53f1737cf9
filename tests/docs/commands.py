"""Commands as documents write them: are they there, with these options?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from handoff.infra.cli.main import main
from tests.docs.pages import ROOT

_HANDOFF = re.compile(r"(?:^\s*|[|;&(]\s*|\bthere )(?:\.venv/bin/handoff|handoff|\$H) +(?=[a-z-])")
_MAKE = re.compile(r"(?:^|\s)make ([a-z0-9-]+)")
_TARGETS = frozenset(re.findall(r"(?m)^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8")))


def problems_in(script: str) -> Iterator[str]:
    """Yield each command of Handoff's, option of one, and target of make that doesn't exist."""
    for line in re.sub(r"\\\n\s*", " ", script).splitlines():
        code = re.sub(r"(^|\s)#.*", "", line)
        for target in _MAKE.findall(code):
            if target not in _TARGETS:
                yield f"make {target}: no such target"
        for found in _HANDOFF.finditer(code):
            yield from _problems_of(_words(code[found.end() :]))


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            break
        words.append(word)
    return words


def _problems_of(words: list[str]) -> Iterator[str]:
    command: click.Command = main
    for word in words:
        if word.startswith("-"):
            if word.partition("=")[0] not in _options(command):
                yield f"{command.name} has no option {word}"
        elif isinstance(command, click.Group):
            if word not in command.commands:
                yield f"{command.name} has no command {word}"
                return
            command = command.commands[word]


def _options(command: click.Command) -> set[str]:
    named = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)}
    return {*named, "--help"}
