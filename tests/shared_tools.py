"""What compilations share, made once for all tests of a process: the C++ runner, headers."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

_BUILT = tempfile.TemporaryDirectory(prefix="handoff-built-")


def share_built(builds: Path) -> None:
    """Let every folder of builds have what the first one made."""
    # A home that can't be made is what one of the tests is about.
    with contextlib.suppress(OSError):
        builds.mkdir(parents=True, exist_ok=True)
        for name in ("programs", "compiler"):
            built = Path(_BUILT.name, name)
            built.mkdir(exist_ok=True)
            (builds / name).symlink_to(built)
