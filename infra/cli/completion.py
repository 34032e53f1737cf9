"""What a shell completes: codes of explanations, and names of models in a store that is a folder.

A shell waits for each of these at every Tab: nothing here imports what a command does, asks a
server, or raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from handoff.artifacts.errors import HandoffError
from handoff.infra.home import home_folder, store_location

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "handoff"
_MAX_ITEMS = 200
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._-]*)?")


def completion_script(command: click.Command, shell: str) -> str:
    """Return the script that lets `shell` complete `handoff`, to be read by it."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source()


def complete_code(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the codes that begin as `typed`, with what each is."""
    from handoff.infra.explaining.explanations import explanations

    by_code = explanations().items()
    return [
        CompletionItem(code, help=explanation.title)
        for code, explanation in by_code
        if code.startswith(typed)
    ]


def complete_model(
    _context: click.Context, _parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """Return the models of the store that begin as `typed`; behind an `@`, one's aliases.

    Nothing where the store isn't a folder, or can't be read.
    """
    try:
        store = store_location(home_folder())
        names = [] if "://" in store else list(_list_names(Path(store) / "models", typed))
    except (HandoffError, OSError):
        return []
    return [CompletionItem(name) for name in sorted(names)[:_MAX_ITEMS]]


def _list_names(models: Path, typed: str) -> Iterable[str]:
    """Give the names in the folder of models; nothing that a shell might take for more."""
    model, separator, _ = typed.partition("@")
    if not separator:
        names = (entry.name for entry in os.scandir(models) if entry.is_dir())
    elif not _REFERENCE.fullmatch(model):
        return
    else:
        files = os.scandir(models / model / "aliases")
        names = (f"{model}@{entry.name.removesuffix('.json')}" for entry in files)
    for name in names:
        if name.startswith(typed) and _REFERENCE.fullmatch(name):
            yield name
