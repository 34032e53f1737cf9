"""The table of findings in docs/training.md, in the words of `handoff explain`.

python -m handoff.infra.documenting.findings docs/training.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from handoff.infra.documenting.folders import replace_section
from handoff.infra.explaining.explanations import explanations

_SEVERITIES = ("unsound", "limit", "note")


def draw_findings() -> str:
    """Return a row for each finding: its code, how grave it is, and what it is in a sentence."""
    rows = [entry for entry in explanations().values() if entry.kind == "finding"]
    rows.sort(key=lambda entry: _SEVERITIES.index(entry.severity.split()[0]))
    lines = [f"| {entry.code} | {entry.severity} | {entry.title} |" for entry in rows]
    return "\n".join(["| finding | severity | what was found |", "|---|---|---|", *lines])


if __name__ == "__main__":
    replace_section(Path(sys.argv[1]), "findings", draw_findings())
