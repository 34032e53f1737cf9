"""What was accepted and isn't posted yet, on disk: Prefect may hang, restart or be away.

Accepted means kept: an arrival is written through to the disk before anybody hears so, and is
removed when its run is there. A run has its arrival's key, so that it is posted once however often
that is tried: by the process that kept it, by another one that shares the home, or by one that
comes after a crash. The oldest goes first, because commits of a model are released in their order.
What the server refuses for good is set aside with the reason, and holds nobody else up.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.writing import flush, write_atomically
from handoff.artifacts.printable import one_line
from handoff.artifacts.record import RecordInvalid, from_plain
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.poster import PostedRun

# Some hundred bytes each: months of commits of a team.
_MOST = 10_000
_SET_ASIDE = "set-aside"
# Where two models fail, it is the server.
_GIVES_UP_AFTER = 2

_FULL = (errno.ENOSPC, errno.EDQUOT)

Post = Callable[[Arrival, Policy], PostedRun]


class DiskFull(EnvironmentLacking):
    """The disk, or this user's part of it, is full: nothing more can be kept."""


@dataclass(frozen=True)
class SpooledArrival:
    """An arrival that waits for the server, in the file `name`, since a moment (ISO 8601)."""

    name: str
    arrival: Arrival
    policy: Policy
    since: str


@dataclass(frozen=True)
class RejectedArrival:
    """An arrival that the server has refused for good, in words, and `why`."""

    what: str
    why: str


@dataclass(frozen=True)
class _Entry:
    arrival: Arrival
    policy: Policy
    since: str


class Spool:
    """The arrivals of one home that wait, oldest first."""

    def __init__(self, home: Path) -> None:
        """Use the home's folder; it is made when something is kept."""
        self._folder = home / "spool"

    def keep(self, arrival: Arrival, policy: Policy) -> SpooledArrival:
        """Write an arrival through to the disk; return it, or the same one that waits already.

        Raises `EnvironmentLacking` where it can't be kept, `DiskFull` where its disk is full:
        nothing is accepted then.
        """
        identity = digest_bytes(f"{arrival.key} {arrival.delivery}".encode()).hex[:16]
        since = datetime.now(UTC).isoformat(timespec="seconds")
        name = f"{time.time_ns():020}-{identity}.json"
        try:
            self._make_folder()
            names = sorted(path.name for path in self._folder.glob("*.json"))
            if duplicates := [each for each in names if each.endswith(f"-{identity}.json")]:
                return SpooledArrival(duplicates[0], arrival, policy, since)
            if len(names) >= _MOST:
                raise EnvironmentLacking(
                    "no more commits can be kept for the Prefect server",
                    expected=f"fewer than {_MOST} that wait", got=str(len(names)),
                    remedy="Bring the server back, or look at what waits: 'handoff notify --kept'",
                )  # fmt: skip
            plain = {"arrival": asdict(arrival), "policy": policy, "since": since}
            write_atomically(self._folder / name, json.dumps(plain), is_synced=True)
            flush(self._folder)
        except OSError as error:
            kind = DiskFull if error.errno in _FULL else EnvironmentLacking
            raise kind(
                "the commit can't be kept for the Prefect server",
                expected=f"room in {self._folder}", got=error.strerror or str(error),
                remedy="Make room, and tell it again: it was not accepted",
            ) from error  # fmt: skip
        return SpooledArrival(name, arrival, policy, since)

    def list_waiting(self) -> tuple[SpooledArrival, ...]:
        """Return what waits, oldest first; what can't be read is set aside."""
        entries = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                entry = from_plain(_Entry, json.loads(path.read_text("utf-8")), path.name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecordInvalid, HandoffError) as error:
                self._set_aside(path, one_line(str(error)))
                continue
            entries.append(SpooledArrival(path.name, entry.arrival, entry.policy, entry.since))
        return tuple(entries)

    def list_set_aside(self) -> tuple[RejectedArrival, ...]:
        """Return what was set aside, oldest first."""
        rejected = []
        for path in sorted((self._folder / _SET_ASIDE).glob("*.why")):
            what, _, why = path.read_text("utf-8").partition("\n")
            rejected.append(RejectedArrival(what, why))
        return tuple(rejected)

    def deliver(self, post: Post, until: SpooledArrival | None = None) -> PostedRun | None:
        """Post what waits, oldest first, as far as `until`; return that one's run.

        One process does so at a time. Raises the first thing that `post` raised for the server's
        sake, which leaves what waits as it is; and what it raises against `until` itself.
        """
        if not self._folder.is_dir():
            return None
        with lock_folder(self._folder):
            failures: dict[str, EnvironmentLacking] = {}
            for entry in self.list_waiting():
                is_last = until is not None and entry.name >= until.name
                # A model's commits keep their order; what fails one need not fail other models.
                if entry.arrival.model not in failures:
                    try:
                        posted = self._post(post, entry, raises_refusal=is_last)
                    except EnvironmentLacking as error:
                        failures[entry.arrival.model] = error
                    else:
                        if until is not None and entry.name == until.name:
                            return posted
                if is_last or len(failures) == _GIVES_UP_AFTER:
                    break
        for failure in failures.values():
            raise failure
        # Another process was quicker: by its key the run is found again.
        return post(until.arrival, until.policy) if until is not None else None

    def _post(self, post: Post, entry: SpooledArrival, *, raises_refusal: bool) -> PostedRun | None:
        """Post one, and remove it; what is refused for good is set aside, or raised."""
        path = self._folder / entry.name
        try:
            posted = post(entry.arrival, entry.policy)
        except EnvironmentLacking:
            raise
        except HandoffError as error:
            if raises_refusal:
                path.unlink(missing_ok=True)
                raise
            self._set_aside(path, one_line(str(error)), entry.arrival.label)
            return None
        path.unlink(missing_ok=True)
        return posted

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flush(self._folder.parent)

    def _set_aside(self, path: Path, why: str, what: str = "what can't be read") -> None:
        aside = self._folder / _SET_ASIDE
        aside.mkdir(mode=0o700, exist_ok=True)
        write_atomically(aside / f"{path.stem}.why", f"{one_line(what)}\n{why}"[:2000])
        path.replace(aside / path.name)
