"""What is in a package that was written, read without loading it."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from handoff.tasks.compile.cross.inspect_binary import ElfFile, read_elf


def members(package: Path, suffix: str) -> list[bytes]:
    """Return the files in a package whose names end so."""
    with zipfile.ZipFile(package) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(suffix)]


def library(package: Path) -> ElfFile:
    (data,) = members(package, ".so")
    return read_elf(data)


def embedded_weights(package: Path) -> dict[str, bytes]:
    """Return each weight's bytes, by the table that the package itself reads them with."""
    (code,) = members(package, "wrapper.cpp")
    table = re.findall(
        rb"constants_info_\[\d+\]\.data_size = (\d+);.*?"
        rb'constants_info_\[\d+\]\.original_fqn = "([^"]+)";',
        code,
        re.DOTALL,
    )
    sizes = [(name.decode(), int(size)) for size, name in table]
    weights = library(package).section(".lrodata")
    assert weights
    # They end the section, after what names their size.
    at = len(weights.data) - sum(size for _, size in sizes)
    found = {}
    for name, size in sizes:
        found[name] = weights.data[at : at + size]
        at += size
    return found
