"""Lineage: which commit of which repository a delivery was made from, as git has it."""

from __future__ import annotations

import re
from pathlib import Path

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.git import ask_git


def lineage_from_git(folder: Path) -> Lineage:
    """Return what git says of `folder`; empty fields for what it doesn't say.

    A commit with changes on top is marked `-dirty`, and credentials in the remote's address are
    left out.
    """
    commit = ask_git(folder, "rev-parse", "HEAD")
    if commit and ask_git(folder, "status", "--porcelain", "--untracked-files=no"):
        commit += "-dirty"
    remote = ask_git(folder, "remote", "get-url", "origin")
    name, mail = (ask_git(folder, "config", key) for key in ("user.name", "user.email"))
    return Lineage(
        repository=re.sub(r"//[^/]*@", "//", remote),
        commit=commit,
        author=f"{name} <{mail}>" if name and mail and commit else "",
    )
