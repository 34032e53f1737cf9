"""Running a page's blocks as a newcomer would: one shell, in the page's order, in a new home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.docs.pages import ROOT, Block
from tests.shared_tools import share_built


def run_blocks(
    blocks: Sequence[Block], scratch: Path, limit_s: float
) -> subprocess.CompletedProcess[str]:
    """Run the blocks in `scratch`, whose `.venv/bin` has `python` and `handoff`, also on PATH.

    Every shell block sees the variables of those before it. What ended it is on standard error,
    below the place of the block.
    """
    programs = _make_programs(scratch)
    home = scratch / "home"
    share_built(home / "builds")
    kept_at = scratch / "blocks"
    kept_at.mkdir()
    lines = ["set -euo pipefail"]
    for number, block in enumerate(blocks):
        lines.append(f"echo '== {block.place}' >&2")
        if block.kind == "file" or block.language == "python":
            # Into the folder that the page is in by then, whose modules a script imports.
            name = block.argument if block.kind == "file" else f"block_{number}.py"
            (kept_at / str(number)).write_text(block.text, encoding="utf-8")
            lines.append(f"cp {kept_at / str(number)} {name}")
            lines.extend([f"python {name}"] if block.kind != "file" else [])
        else:
            assert block.language == "sh", f"{block.place}: {block.language} can't be run"
            lines.append(block.text)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "AWS_", "MLFLOW"))}
    return subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=scratch,
        env={
            **kept, "HANDOFF_HOME": str(home), "PYTHONPATH": str(ROOT),
            "PATH": f"{programs}:{os.environ['PATH']}",
        },
        capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip


def _make_programs(scratch: Path) -> Path:
    programs = scratch / ".venv" / "bin"
    programs.mkdir(parents=True)
    # As scripts, since Python finds its packages by where it is started from.
    commands = {"python": "", "handoff": "-P -m handoff"}
    for name, arguments in commands.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        script.chmod(0o755)
    return programs
