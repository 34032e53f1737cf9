"""Options that every command has."""

from __future__ import annotations

import sys
from typing import Any

import click


def debug_option(command: Any) -> Any:  # noqa: ANN401 - a decorator of any command
    """Add `--debug`, which is read where errors are told."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the trace of an error."
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

quiet_option = click.option(
    "--quiet", is_flag=True, expose_value=False, help="Print the result, or the error, alone."
)


def is_quiet() -> bool:
    """Tell whether `--quiet` was said: no progress, notes or hints; read where these are told."""
    return "--quiet" in sys.argv
