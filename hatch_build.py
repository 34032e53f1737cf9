"""Writes into the wheel which commit it is built from: `handoff --version` tells it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `handoff/commit.txt`, from git or, where there is none, from HANDOFF_COMMIT."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to what goes into the wheel; an editable installation asks git itself."""
        if version == "editable":
            return
        command = ["git", "-C", self.root, "rev-parse", "--short=12", "HEAD"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            commit = ended.stdout.strip() if ended.returncode == 0 else ""
        except OSError:
            commit = ""
        written = Path(tempfile.mkdtemp(prefix="handoff-wheel-"), "commit.txt")
        written.write_text(f"{commit or os.environ.get('HANDOFF_COMMIT', '')}\n", encoding="ascii")
        build_data["force_include"][str(written)] = "handoff/commit.txt"
