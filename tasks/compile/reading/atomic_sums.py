"""Whether a package adds numbers up in an order that its threads decide, by the C++ it is made of.

Where several threads add to places that only the data tells (`index_add`, `index_put` that
accumulates, a fold), Inductor's code for the CPU adds atomically: no term is lost, and each sum is
right, but floating-point sums round otherwise from call to call. ATen's `index_put` does so, too.
Everything else that a CPU's package calls gives the same bits each time.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

# Whole numbers are the same in any order. What `transpose_mxn` is told last is whether it adds.
_WHOLE = r"(?:u?int\d*_t|bool|signed char|unsigned char|short|int|long)\b"
_ATOMIC = re.compile(
    rf"\batomic_add_vec<(?!{_WHOLE})"
    rf"|\batomic_add\(.*static_cast<(?!{_WHOLE})"
    rf"|\btranspose_mxn<(?!{_WHOLE})[^>]*\btrue>"
)
_KERNEL = re.compile(r"\bvoid\s+(\w+)\(")
_INDEX_PUT = re.compile(r"\baoti_torch_(?:cpu_)?index_put_out\(.*, (?:1|true)\)")


def find_atomic_sums(package: Path) -> tuple[str, ...]:
    """Return the functions that add so, by their names in the C++ that lies in the package."""
    found: list[str] = []
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".cpp"):
                found += atomic_sums_in(archive.read(name).decode())
    return tuple(dict.fromkeys(found))


def atomic_sums_in(code: str) -> list[str]:
    """Return the same of the C++ of one file."""
    found, kernel = [], ""
    for line in code.splitlines():
        if line.startswith("//"):
            continue
        named = _KERNEL.search(line)
        kernel = named[1] if named else kernel
        if _ATOMIC.search(line):
            found.append(kernel)
        elif _INDEX_PUT.search(line):
            found.append("aten::index_put")
    return found
