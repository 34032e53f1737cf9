"""Which Handoff this is: its version, and the commit that it was built from."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

from handoff.artifacts.isolated import own_package, own_root

# Beside the rooms, in a wheel alone (`hatch_build.py`).
COMMIT_FILE = "commit.txt"


def own_version() -> str:
    """Return the version that is installed: `0.2.0`."""
    return version("handoff")


def own_commit() -> str:
    """Return the commit that the wheel was built from, or the checkout stands at; '' for none.

    A checkout with changes of its own has `+` behind it.
    """
    written = Path(own_package(), COMMIT_FILE)
    if written.is_file():
        return written.read_text(encoding="ascii").strip()
    if not Path(own_root(), ".git").exists():
        return ""
    head = _git("rev-parse", "--short=12", "HEAD")
    return f"{head}+" if head and _git("status", "--porcelain", "--untracked-files=no") else head


def _git(*arguments: str) -> str:
    command = ["git", "-C", own_root(), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
