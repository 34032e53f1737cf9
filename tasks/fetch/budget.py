"""What a delivery may cost at most, counted while it arrives."""

from __future__ import annotations

import time
from pathlib import PurePosixPath

from handoff.artifacts.delivery.uri import is_plain_path
from handoff.artifacts.errors import DeliveryUnreachable, DeliveryUnreadable
from handoff.tasks.fetch.messages import FetchLimits

_MAX_DEPTH = 16


class Budget:
    """The bytes, files and seconds that are left of `limits`."""

    def __init__(self, limits: FetchLimits) -> None:
        """Begin to count."""
        self.limits = limits
        self.size_bytes = 0
        self._names: set[str] = set()
        self._deadline = time.monotonic() + limits.seconds

    def remaining_s(self) -> float:
        """Return the seconds that are left; raise `DeliveryUnreachable` when there are none."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise DeliveryUnreachable(
                "the delivery took too long", expected=f"all of it in {self.limits.seconds:g} s",
                got="less", remedy="Look at the line to it, then try again",
            )  # fmt: skip
        return remaining

    def check_time(self, _count: int) -> None:
        """Look at the time: a progress callback for bytes that were counted before."""
        self.remaining_s()

    def take_bytes(self, count: int) -> None:
        """Count bytes that arrived, and look at the time; raise when it is too much."""
        self.size_bytes += count
        self.remaining_s()
        if self.size_bytes > self.limits.size_bytes:
            raise _too_large_error(f"at most {self.limits.size_bytes} bytes", "more")

    def require_room(self, count: int) -> None:
        """Raise `DeliveryUnreadable` when `count` more bytes, as announced, would be too many."""
        if self.size_bytes + count > self.limits.size_bytes:
            got = f"{self.size_bytes + count}"
            raise _too_large_error(f"at most {self.limits.size_bytes} bytes", got)

    def take_name(self, name: str, kind: str = "file") -> PurePosixPath:
        """Count a file or a folder, and return its path; raise `DeliveryUnreadable` for a bad one.

        It is relative, of plain names, and hasn't come before.
        """
        self.remaining_s()
        if not is_plain_path(name) or name.count("/") >= _MAX_DEPTH:
            raise DeliveryUnreadable(
                f"the delivery holds a {kind} with a name that is never written",
                expected="a relative path of plain names", got=ascii(name[:80]),
                remedy="Deliver the model again with 'handoff deliver'",
            )  # fmt: skip
        if name in self._names:
            raise DeliveryUnreadable(
                "the delivery holds two entries of one name", expected="each once",
                got=ascii(name[:80]), remedy="Pack the delivery again",
            )  # fmt: skip
        self._names.add(name)
        if len(self._names) > self.limits.files:
            raise _too_large_error(f"at most {self.limits.files} files and folders", "more")
        return PurePosixPath(name)


def _too_large_error(expected: str, got: str) -> DeliveryUnreadable:
    return DeliveryUnreadable(
        "the delivery is too large", expected=expected, got=got,
        remedy="Does the address name the delivery alone?",
    )  # fmt: skip


def refuse_kind(name: str, got: str) -> DeliveryUnreadable:
    """Return the refusal for an entry that is neither a file nor a folder."""
    return DeliveryUnreadable(
        f"the delivery holds {name[:80]!a}, which is not a plain file",
        expected="regular files and folders", got=got,
        remedy="Copy the delivery's files themselves to where it is fetched from",
    )  # fmt: skip
