"""Tamper with a release, and write what came of it into the table beside this: tampering.md.

python -m tests.artifacts.release.tampering_table
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.release.package import check_release
from handoff.artifacts.serve.loader import load
from handoff.tasks.probe.build import build_runner
from tests.artifacts.mlflow.canaries import CANARY, Pulled, pull_canaries
from tests.artifacts.release.tampering import (
    ACCEPTED,
    OPENED,
    TAMPERINGS,
    Tampering,
    call_runner,
)
from tests.artifacts.samples import sample_key

TABLE = Path(__file__).with_name("tampering.md")
RUNNER = Path(__file__).parents[3] / "infra" / "runner"
TITLE = (
    "# What was done to pulled releases, and what came of it\n\n"
    "Each line is one change to a folder that `handoff pull` wrote, and what three readers make of "
    "it: the Python loader, the command and the C++ program. What is *opened* has run code of the "
    "package, what is *accepted* has verified; of what is *refused* nothing has run. "
    "`python -m tests.artifacts.release.tampering_table` does all of it and writes this page; "
    "the tests ask for the same.\n\n"
)
HEAD = ("what was done to a pulled release", "`load`", "`handoff verify`", "C++ runner")


def render(rows: list[tuple[str, ...]]) -> str:
    """Return the page in Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    return TITLE + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def expected_row(tampering: Tampering) -> tuple[str, ...]:
    """Return the row that the tests ask for."""
    patterns = (tampering.load, tampering.verify_pattern, tampering.runner_pattern)
    return tampering.what, *(one if one in (OPENED, ACCEPTED) else "refused" for one in patterns)


def measure(tampering: Tampering, program: Path, scratch: Path) -> tuple[str, ...]:
    """Return the row that comes of it here; what ran is known by what it wrote."""
    found = [tampering.what]
    for look in (_load, _verify, lambda t, p: _call(program, t, p)):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            os.environ[CANARY] = str(Path(folder, "canary"))
            pulled = pull_canaries(Path(folder, "pulled"), scratch)
            tampering.change(pulled, scratch)
            answer = look(tampering, pulled)
            found.append(OPENED if Path(folder, "canary").exists() else answer)
    return tuple(found)


def _load(tampering: Tampering, pulled: Pulled) -> str:
    try:
        load(
            pulled.folder, keys=sample_key().trust, name=tampering.name,
            version=tampering.version, target=tampering.target, file=tampering.file,
        )  # fmt: skip
    except PackageRefused:
        return "refused"
    return "loaded"


def _verify(tampering: Tampering, pulled: Pulled) -> str:
    try:
        check_release(
            pulled.folder, torch.__version__, sample_key().trust,
            name=tampering.name, version=tampering.version,
        )  # fmt: skip
    except PackageRefused:
        return "refused"
    return ACCEPTED


def _call(program: Path, tampering: Tampering, pulled: Pulled) -> str:
    key = pulled.folder.parent / "key.pub"
    key.write_bytes(sample_key().pem)
    options = [*tampering.runner_options, "--key", str(key)]
    canary = {CANARY: os.environ[CANARY]}
    ended = call_runner(program, pulled.folder, *options, **canary)
    return "refused" if ended.returncode == 1 else f"exit status {ended.returncode}"


def main() -> None:
    """Do all of it, and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        program, _ = build_runner(RUNNER, scratch / "programs")
        rows = [measure(tampering, program, scratch) for tampering in TAMPERINGS]
    TABLE.write_text(render(rows))
    print(TABLE.read_text())


if __name__ == "__main__":
    main()
