"""Which Handoff this is: its version, and the commit that it was built from, as git says."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

from handoff.artifacts.isolation import own_package, own_root

_LIMIT_S = 10.0


def ask_git(folder: Path, *arguments: str) -> str:
    """Return what git prints in `folder`, without the space around it.

    Empty where it fails, where there is no git, and where it takes longer than ten seconds.
    """
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


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
    root = Path(own_root())
    if not (root / ".git").exists():
        return ""
    head = ask_git(root, "rev-parse", "--short=12", "HEAD")
    if head and ask_git(root, "status", "--porcelain", "--untracked-files=no"):
        return f"{head}+"
    return head
