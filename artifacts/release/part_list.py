"""PARTS and DELIVERY: which objects make up each file, for whoever has an S3 client and a shell.

PARTS is about the files of a release, DELIVERY about those of the delivery that it was made from.
One line a part, in the order in which they are put together:

    <64 hexadecimal digits> <bytes> <path>
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.stores.parts import Part

PARTS_FILE = "PARTS"
DELIVERY_FILE = "DELIVERY"
PARTS_LIMIT_BYTES = 16 << 20
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,18}) (\S.*)")


def write_parts(files: Mapping[str, tuple[Part, ...]]) -> bytes:
    """Return the lines for every file, by path."""
    return "".join(
        f"{part.digest.hex} {part.size_bytes} {path}\n"
        for path in sorted(files)
        for part in files[path]
    ).encode()


def read_parts(data: bytes) -> dict[str, tuple[Part, ...]]:
    """Return each file's parts; raise `PackageRefused` for what is no such list."""
    files: dict[str, tuple[Part, ...]] = {}
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise PackageRefused(
                "the list of a release's parts can't be read",
                expected="lines of a digest, a number of bytes and a path", got=line[:80],
                remedy="Tell who releases",
            )  # fmt: skip
        part = Part(Digest(f"sha256:{found[1]}"), int(found[2]))
        files[found[3]] = (*files.get(found[3], ()), part)
    return files
