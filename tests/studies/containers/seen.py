"""What a run saw: a line for each thing that was tried, and a log of every command."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path


class TrialFailed(Exception):
    """Something wasn't as it should be; the message says what was seen in its place."""


@dataclass(frozen=True)
class Log:
    """A file that every command and its output goes to."""

    path: Path

    def say(self, text: str) -> None:
        """Put a line there, and show it."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, flush=True)
        self._add(f"{line}\n")

    def run(
        self,
        command: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        limit_s: float = 120,
        expected: int = 0,
    ) -> str:
        """Run a command; return what it printed.

        Raises `TrialFailed` with its last lines when it ends with another exit code than expected.
        """
        self._add(f"{time.strftime('%H:%M:%S')} $ {shlex.join(command)}\n")
        before = self.path.stat().st_size
        with self.path.open("ab") as errors:
            try:
                done = subprocess.run(
                    command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=errors, check=False, timeout=limit_s,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"{command[0]} took more than {limit_s:.0f} s") from None
        printed = done.stdout.decode("utf-8", "replace")
        self._add(printed)
        if done.returncode != expected:
            words = " ".join([Path(command[0]).name, *command[1:4]])
            said = " ".join(
                self.path.read_bytes()[before:][-400:].decode("utf-8", "replace").split()
            )
            raise TrialFailed(f"{words}: exit code {done.returncode}, expected {expected}: {said}")
        return printed

    def _add(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(text)


@dataclass
class Row:
    """One thing that was tried: whether it went as it should, what was seen, and how long."""

    what: str
    is_ok: bool = False
    seen: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, text: str) -> None:
        """Add to what was seen."""
        self.seen.append(text)

    def require(self, is_so: object, otherwise: str) -> None:
        """Raise `TrialFailed` with what was seen in its place, if it isn't so."""
        if not is_so:
            raise TrialFailed(otherwise)


@dataclass(frozen=True)
class ResultLog:
    """The rows of a run, in a file: they outlive the process that was killed."""

    path: Path
    log: Log

    @contextmanager
    def trying(self, what: str) -> Iterator[Row]:
        """Give a row to note in; a failure makes it one that failed, and is raised further."""
        self.log.say(f"... {what}")
        row, began = Row(what), time.monotonic()
        try:
            yield row
            row.is_ok = True
        except Exception as error:
            row.note(f"{error}" if isinstance(error, TrialFailed) else f"{error!r}")
            raise
        except BaseException:
            row.note("interrupted")
            raise
        finally:
            row.seconds = time.monotonic() - began
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(row)) + "\n")
            self.log.say(f"{'ok ' if row.is_ok else 'FAILED'} {what}: {'; '.join(row.seen)}")

    def rows(self) -> list[Row]:
        """Return them, in their order."""
        if not self.path.exists():
            return []
        return [Row(**json.loads(line)) for line in self.path.read_text("utf-8").splitlines()]


def table(rows: list[Row]) -> list[str]:
    """Return the rows as a Markdown table."""
    lines = ["| what | went | seconds | what was seen |", "|---|---|---|---|"]
    for row in rows:
        seen = "; ".join(row.seen).replace("|", "\\|").replace("\n", " ")
        went = "ok" if row.is_ok else "FAILED"
        lines.append(f"| {row.what} | {went} | {row.seconds:.0f} | {seen} |")
    return lines
