"""Options that every command has."""

from __future__ import annotations

from typing import Any

import click


def debug_option(command: Any) -> Any:  # noqa: ANN401 - a decorator of any command
    """Add `--debug`, which is read where errors are told."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the trace of an error."
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
