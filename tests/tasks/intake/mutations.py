"""Mutations of delivered files, and a watch on what is executed meanwhile."""

from __future__ import annotations

import io
import sys
import zipfile
from typing import Any

Places = list[tuple[float, int, bytes]]

PIECES = [
    b"", b"(", b")", b"[", b"'", b'"', b".", b",", b"=", b"\n", b"\t", b"#", b"*", b"**", b"-",
    b":", b" None", b"self", b"__class__", b"torch.load", b"torch.ops.aten", b"getattr(",
    b"lambda: ", b"import os", b"eval('1')", b"9" * 30, b"\x00", b"\xff", b"\x80\x02", b"c", b"R",
    b"b", b"t", b"q\x00", b"h\x00", b"PK\x01\x02", b"PK\x03\x04", b"\xff\xff\xff\xff", b"../",
    b"\x81", b"Q",
    b"cposix\nsystem\n", b"ctorch.hub\nload\n", b"K\x7f", b"\x8a\x08" + b"\x7f" * 8, b"}", b"]",
    b"0",
    # What would take for ever, or everything, where it is computed before it is bounded.
    b" ** 400000000", b" << 1000000000", b" * 1000000000000", b"math_factorial(20000000)",
    b"range(0, 1000000000000)", b"torch.ones(1000000000000)", b"1000000000000", b"1e999",
    b"[" * 300, b"9" * 5000, b"\x1b[2J", "\u202e".encode(), b"\xef\xbb\xbf",
]  # fmt: skip
_FORBIDDEN = {"exec", "os.system", "os.mkdir", "subprocess.Popen", "pickle.find_class"}


class Watch:
    """Notes what is executed while it is on, but for the code of rebuilt graphs."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str, Any]] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in _FORBIDDEN:
            name = str(getattr(args[0], "co_filename", ""))
            if event != "exec" or not name.startswith("<eval_with_key>"):
                self.seen.append((event, args))


def mutate(data: bytes, places: Places) -> bytes:
    """Return `data` with pieces put over a few bytes at these places, from 0 to 1."""
    for place, length, piece in places:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + length :]
    return data


def mutate_pickle(data: bytes, places: Places) -> bytes:
    """Return the archive with another `data.pkl`, whose checksum holds."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, mutate(content, places) if name.endswith("data.pkl") else content)
    return written.getvalue()
