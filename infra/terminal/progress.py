"""The progress of steps on standard error: one line that is redrawn, or plain lines in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from handoff.artifacts.printable import one_line
from handoff.artifacts.release.interval import size
from handoff.flows.progress import LOGGER
from handoff.infra.cli.group import is_quiet
from handoff.infra.settings import wants_json_logs
from handoff.infra.terminal.output import JsonFormatter, echo
from handoff.infra.terminal.step_times import WHOLE_RELEASE, StepTimes

NO_TIMES = StepTimes({})
_START = "start"
_START_PURPOSE = "  Prefect, which records the run"
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_REFRESH_HZ = 8
# What takes less needs no announcement in a log.
_ANNOUNCE_AFTER_S = 5.0


class _PlainProgress(logging.Handler):
    """One line at a step's end, and one at the beginning of a long one: what a log wants."""

    def __init__(self, times: StepTimes) -> None:
        super().__init__()
        self._times = times
        self._timers: dict[str, threading.Timer] = {}

    def emit(self, record: logging.LogRecord) -> None:
        phase, step = getattr(record, "phase", ""), getattr(record, "step", "")
        last_s = self._times.expected(step)
        if phase == "begin":
            if last_s is not None and last_s >= _ANNOUNCE_AFTER_S:
                echo(f"{record.getMessage()} (last time: {_format_duration(last_s)})", err=True)
            elif getattr(record, "bound", ""):
                echo(record.getMessage(), err=True)
            else:
                self._announce_later(step, f"{record.getMessage()}{_format_purpose(record)}")
        elif phase != "under way":
            if timer := self._timers.pop(step, None):
                timer.cancel()
            comparison = f" (last time: {_format_duration(last_s)})" if last_s is not None else ""
            echo(record.getMessage() + comparison + _format_purpose(record), err=True)

    def _announce_later(self, step: str, text: str) -> None:
        """Name a step of which nobody knew that it takes long, while it does."""
        timer = threading.Timer(_ANNOUNCE_AFTER_S, echo, (text,), {"err": True})
        timer.daemon = True
        self._timers[step] = timer
        timer.start()

    def close(self) -> None:
        """Announce nothing more."""
        for timer in self._timers.values():
            timer.cancel()
        super().close()


class _LiveProgress(logging.Handler):
    """A line for each step that is done, and one that is redrawn with those under way."""

    def __init__(self, times: StepTimes, console: Console) -> None:
        super().__init__()
        self._times = times
        self._began = time.monotonic()
        # An embedded Prefect takes seconds to start, and the flow runs after it.
        self._running: dict[str, float] = {_START: self._began}
        self._details: dict[str, str] = {}
        self.live = Live(self, console=console, refresh_per_second=_REFRESH_HZ, transient=True)

    def emit(self, record: logging.LogRecord) -> None:
        step: str = getattr(record, "step", record.getMessage())
        phase, fields = getattr(record, "phase", ""), record.__dict__
        if self._running.pop(_START, None) is not None:
            started_s = time.monotonic() - self._began
            if started_s >= 0.5:
                self._finish(_START, started_s, _START_PURPOSE, "done")
        if phase == "begin":
            self._running[step] = time.monotonic()
            if fields.get("bound"):
                self._details[step] = fields["bound"]
        elif phase == "under way":
            self._details[step] = f"{size(fields['done'])} of {size(fields['total'])}"
        elif self._running.pop(step, None) is not None:
            self._finish(step, fields.get("seconds", 0.0), _format_purpose(record), phase)

    def _finish(self, step: str, took_s: float, purpose: str, phase: str) -> None:
        mark = {"failed": Text("refused ", "red"), "ended": Text("stopped ", "yellow")}.get(
            phase, Text("✓ ", "green")
        )
        last_s = self._times.expected(step)
        comparison = f" (last time: {_format_duration(last_s)})" if last_s is not None else ""
        line = Text(one_line(f"{step} {took_s:.1f} s"))
        self.live.console.print(mark + line + Text(comparison + purpose, "dim"))

    def __rich__(self) -> Text:
        """Return the line as it is now: the whole first, since its end may be cut off."""
        now = time.monotonic()
        spinner = _SPINNER[int(now * _REFRESH_HZ) % len(_SPINNER)]
        elapsed = self._elapsed(WHOLE_RELEASE, now - self._began)
        # A copy, because steps begin and end in other threads.
        steps = [f"{s} {self._elapsed(s, now - began)}" for s, began in list(self._running.items())]
        line = "  ".join([f"{spinner} {elapsed}:", *steps])
        return Text(one_line(line), style="cyan", no_wrap=True, overflow="ellipsis", end="")

    def _elapsed(self, step: str, elapsed_s: float) -> str:
        last_s = self._times.expected(step)
        comparison = ""
        if last_s is not None:
            # What takes much longer than last time is about nothing.
            is_near, last_text = (
                elapsed_s <= 2 * last_s + _ANNOUNCE_AFTER_S,
                _format_duration(last_s),
            )
            comparison = f" of about {last_text}" if is_near else f" (last time: {last_text})"
        detail = self._details.get(step)
        return f"{elapsed_s:.0f} s{comparison}" + (f", {detail}" if detail else "")


def _format_purpose(record: logging.LogRecord) -> str:
    """Return what a step is there for, after its name and time."""
    does = getattr(record, "does", "")
    return f"  {does}" if does else ""


def _format_duration(took_s: float) -> str:
    return f"{took_s:.1f} s" if took_s < 10 else f"{took_s:.0f} s"


@contextmanager
def shown_progress(times: StepTimes = NO_TIMES) -> Iterator[None]:
    """Show the steps' progress while the body runs, beside the `times` that they took before.

    With `--quiet` nothing is shown. Raises `UsageProblem` for a form of log that there isn't.
    """
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    if is_quiet():
        yield
        return
    console = Console(stderr=True)
    # A dumb terminal can't go back in its line.
    live = None
    if wants_json_logs():
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty() and not console.is_dumb_terminal:
        handler = live = _LiveProgress(times, console)
    else:
        handler = _PlainProgress(times)
    LOGGER.addHandler(handler)
    try:
        if live:
            with live.live:
                yield
        else:
            yield
    finally:
        LOGGER.removeHandler(handler)
        handler.close()
