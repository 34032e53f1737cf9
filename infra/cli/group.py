"""What every command has: its options, and its end in a sentence and an exit code."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
import traceback
from functools import partial
from typing import Any

import click

from handoff.artifacts.errors import (
    DeliveryUnreachable,
    EnvironmentLacking,
    HandoffError,
    StepCrashed,
    StoreFailed,
    UsageProblem,
)
from handoff.infra.terminal import interruption
from handoff.infra.terminal.output import echo


def debug_option(command: Any) -> Any:  # noqa: ANN401 - a decorator of any command
    """Add `--debug`, which is read where errors are printed."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the trace of an error."
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

quiet_option = click.option(
    "--quiet", is_flag=True, expose_value=False, help="Print only the result, or the error."
)


def is_quiet() -> bool:
    """Return whether `--quiet` was given: read where progress, notes and hints are printed."""
    return "--quiet" in sys.argv


# What may end well when the same command is given again, once the machine or a server is fixed.
_REPEATABLE = (EnvironmentLacking, StepCrashed, StoreFailed, DeliveryUnreachable)


class HandoffGroup(click.Group):
    """Turns every error into a sentence and an exit code; `--debug` shows where it came from."""

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's own signature
        """Run a command and end the process with its exit code."""
        kwargs["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **kwargs) or 0)
        except click.exceptions.Exit as exiting:
            sys.exit(exiting.exit_code)
        except (click.Abort, KeyboardInterrupt):
            echo(interruption.MESSAGE, err=True)
            _print_repetition()
            sys.exit(interruption.EXIT_CODE)
        except click.exceptions.NoArgsIsHelpError as help_wanted:
            echo(help_wanted.format_message(), err=True)
            sys.exit(UsageProblem.exit_code)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "handoff"
            message = error.format_message().rstrip(".")
            period = "" if message.endswith("?") else "."
            echo(f"handoff: {message}{period} See '{command} --help'", err=True)
            sys.exit(UsageProblem.exit_code)
        except HandoffError as error:
            sys.exit(_print_error(error))
        except OSError as error:
            sys.exit(_print_os_error(error))
        except ModuleNotFoundError as error:
            from handoff.infra.extras import missing_extra_error

            extra_error = missing_extra_error(error)
            sys.exit(_print_error(extra_error) if extra_error else _print_defect(error))
        except Exception as error:  # noqa: BLE001 - the last border before the user
            sys.exit(_print_defect(error))

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as above
        """Run the command as a program of ours, which may leave the folder that it began in."""
        # Not for a Tab, nor for help, which wait for no imports.
        from handoff.infra.engine import import_paths
        from handoff.infra.engine.environments import with_absolute_paths

        # Settings are read again after it has left the folder.
        os.environ.update(with_absolute_paths(os.environ))
        with import_paths.working_folder_restored():
            return super().invoke(ctx)


def _print_error(error: HandoffError) -> int:
    _print_trace()
    for line in _format_error(error):
        echo(line, err=True)
    if isinstance(error, _REPEATABLE):
        _print_repetition()
    if not is_quiet():
        from handoff.infra.explaining.explain import hint_for_error

        if hint := hint_for_error(error):
            echo(f"  more:  {hint}", err=True)
    return error.exit_code


def _format_error(error: HandoffError) -> list[str]:
    """Return the error as one sentence; where several things were found, each on a line."""
    if "\n" not in error.got:
        return [f"handoff: {error}"]
    paragraphs = [f"handoff: {error.what}", *error.got.splitlines(), f"What to do: {error.remedy}"]
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 120
    # Paths and names stay whole, to be copied.
    wrap = partial(textwrap.wrap, width=max(width, 40), subsequent_indent="  ",
                   break_long_words=False, break_on_hyphens=False)  # fmt: skip
    indented = (paragraphs[0], *("  " + text for text in paragraphs[1:]))
    return [line for text in indented for line in wrap(text)]


def _print_repetition() -> None:
    """Print the line that gives the same command again; its arguments are no secret."""
    if not is_quiet():
        echo(f"  again: {shlex.join(['handoff', *sys.argv[1:]])}", err=True)


def _print_os_error(error: OSError) -> int:
    _print_trace()
    path = f" {error.filename}" if error.filename else ""
    reason = error.strerror or str(error)
    echo(f"handoff: can't use{path}: {reason}. Fix that, and run it again", err=True)
    _print_repetition()
    return HandoffError.exit_code


def _print_defect(error: Exception) -> int:
    _print_trace()
    line = (str(error).strip().splitlines() or [""])[0][:300]
    echo(
        f"handoff: that should not have happened: {type(error).__name__}: {line}. "
        "Run it again with --debug, and report the trace",
        err=True,
    )
    return HandoffError.exit_code


def _print_trace() -> None:
    if "--debug" in sys.argv:
        echo(traceback.format_exc().rstrip("\n"), err=True)
