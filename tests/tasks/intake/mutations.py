"""Mutations of delivered files, and a watch on what is executed meanwhile."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import sys
import zipfile
from collections.abc import Callable
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
# What no part of a graph that was read may hold; no equation of einsum has a digit.
MARK = "M4RK"
TEXTS = [
    '");system("id");//M4RK', "M4RK\x1b]0;x\x07", "M4RK\n#include <a>\nM4RK", "M4RK\\", "M4RK??/",
    "'+__import__('os').system('id')+'M4RK", "M4RK\u202e", "M4RK%n%s", 'M4RK)"', "M4RK\x00",
    "M4RK\x7f", "M4RK" * 5000, "M4RK\ud7ff", "../M4RK", "$(M4RK)", "`M4RK`", "M4RK\r", "M4RK*/",
    "M4RK{0}", " M4RK",
]  # fmt: skip
# Names that mean something to somebody, in the spelling of an identifier.
WORDS = [
    "int", "class", "system", "errno", "std", "None", "self", "torch", "lambda", "__class__", "_",
    "exec", "\uff53ystem", "\u2118", "x" * 300, "forward", "operator", "main", "NULL", "__del__",
]  # fmt: skip
_TEXT_IN_PICKLE = re.compile(rb"X(....)", re.DOTALL)
_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_NAME = re.compile(r"[A-Za-z_]\w*")
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


def mutate_text(name: str, data: bytes, dice: random.Random) -> bytes:
    """Return a file with one of its texts or names changed, and everything else as it was."""
    if name.endswith(".pt"):
        return _in_archive(data, lambda pickle: _mutate_pickled_text(pickle, dice))
    text = data.decode("utf-8", "surrogateescape")
    at_quotes = dice.random() < 0.7
    found = list((_QUOTED if at_quotes else _NAME).finditer(text))
    if not found or name.endswith(".safetensors"):
        return data
    place, new = dice.choice(found), dice.choice(TEXTS)
    if not at_quotes:
        new = dice.choice(WORDS)
    elif name.endswith(".py"):
        new = repr(new)
    else:
        new = json.dumps(new)
    return (text[: place.start()] + new + text[place.end() :]).encode("utf-8", "surrogateescape")


def _mutate_pickled_text(data: bytes, dice: random.Random) -> bytes:
    places = []
    for found in _TEXT_IN_PICKLE.finditer(data):
        (size,) = struct.unpack("<I", found[1])
        if size < 200 and data[found.end() : found.end() + size].isascii():
            places.append((found.start(), found.end() + size))
    if not places:
        return data
    start, end = dice.choice(places)
    new = dice.choice(TEXTS + WORDS).encode("utf-8", "surrogatepass")
    return data[:start] + b"X" + struct.pack("<I", len(new)) + new + data[end:]


def mutate_pickle(data: bytes, places: Places) -> bytes:
    """Return the archive with another `data.pkl`, whose checksum holds."""
    return _in_archive(data, lambda pickle: mutate(pickle, places))


def _in_archive(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return written.getvalue()
