"""Git, asked about a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
