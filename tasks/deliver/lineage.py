"""Lineage: which commit of which repository a delivery was made from, as git has it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from handoff.artifacts.delivery.contract import Lineage


def lineage_from_git(folder: Path) -> Lineage:
    """Return what git says of `folder`; empty fields for what it doesn't say.

    A commit with changes on top is marked `-dirty`, and credentials in the remote's address are
    left out.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit and _git(folder, "status", "--porcelain", "--untracked-files=no"):
        commit += "-dirty"
    remote = _git(folder, "remote", "get-url", "origin")
    name, mail = (_git(folder, "config", key) for key in ("user.name", "user.email"))
    return Lineage(
        repository=re.sub(r"//[^/]*@", "//", remote),
        commit=commit,
        author=f"{name} <{mail}>" if name and mail and commit else "",
    )


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
