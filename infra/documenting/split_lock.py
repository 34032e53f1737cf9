"""Split a lock into torch's own binary packages and the rest, so that torch can be chosen apart.

python -m handoff.infra.documenting.split_lock ALL.lock REST.lock TORCH.lock
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")
_HEADER = """\
# Resolved by `make lock` from pyproject.toml; every file is pinned by its hashes.
"""


def split(lock: str) -> tuple[str, str]:
    """Return the entries of `lock` that are not torch's binaries, and those that are."""
    entries = re.split(r"(?m)^(?=[a-zA-Z0-9])", lock)
    rest = [entry for entry in entries if entry.strip() and not _TORCH.match(entry)]
    torch = [entry for entry in entries if _TORCH.match(entry)]
    return _HEADER + "".join(rest), _HEADER + "".join(torch)


def main(arguments: list[str]) -> None:
    """Read the first file, write the other two."""
    source, rest, torch = map(Path, arguments)
    for path, text in zip((rest, torch), split(source.read_text("utf-8")), strict=True):
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
