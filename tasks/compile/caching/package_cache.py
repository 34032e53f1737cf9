"""Where compiled packages are kept: a cache for the code of each delivery, out of others' sight.

What compiles a stranger's graph writes to a cache, and what it left there is run by the next build
that takes it. So no build sees another cache than that of the very code that was delivered to it;
only the process that started it, which holds no graph, sees them all.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.delivery.contract import (
    CONTRACT_FILE,
    INIT_FILE,
    MODULE_FILE,
    NO_LINEAGE,
    code_without_folder,
    parse_contract,
)
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.record import to_plain

# Entries beyond this go, those that were not used for longest first.
_MAX_BYTES = 8 << 30
# An entry is a folder with this file, whose time is that of its last use.
ENTRY_FILE = "entry.json"
_MAX_FILE_BYTES = 1 << 28


def package_cache_of(delivery: Path, packages: Path) -> Path:
    """Return the cache, below the folder `packages`, of the code that a delivery's folder holds.

    Weights, the model's name and what is said of the source have no part in it: what is trained
    further is compiled to the same code. Of a folder that is no delivery it is one that nothing is
    found in, and intake says why.
    """
    return packages / _digest_code(delivery).hex


def _digest_code(delivery: Path) -> Digest:
    parts = [code_without_folder(_read_file(delivery / name)) for name in (MODULE_FILE, INIT_FILE)]
    contract = _read_file(delivery / CONTRACT_FILE)
    try:
        parsed = parse_contract(contract)
        neutral = replace(parsed, model=replace(parsed.model, name="any"), source=NO_LINEAGE)
        contract = json.dumps(to_plain(neutral), sort_keys=True).encode()
    except (HandoffError, ValueError, RecursionError):
        pass  # no contract, or none that intake would take
    return digest_bytes(b"\n".join(digest_bytes(part).encode() for part in (*parts, contract)))


def _read_file(path: Path) -> bytes:
    """Return a file's bytes; none of what is no file, or far too large for what it should be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return b""
        return stream.read(_MAX_FILE_BYTES)


def evict_old_packages(packages: Path) -> None:
    """Remove the entries of all caches beyond what they may take of the disk together.

    What another process takes at the same time is not found there then, and compiled.
    """
    entries = []
    for entry in packages.glob(f"*/*/{ENTRY_FILE}"):
        try:
            size = sum(file.stat().st_blocks * 512 for file in entry.parent.iterdir())
            entries.append((entry.stat().st_mtime, size, entry.parent))
        except OSError:
            continue  # another process has removed it
    total = 0
    for _, size, folder in sorted(entries, reverse=True):
        # What lies on the disk: holes take nothing.
        total += size
        if total > _MAX_BYTES:
            shutil.rmtree(folder, ignore_errors=True)
