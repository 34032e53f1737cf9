"""The tables of docs/glossary.md, in the words of `handoff explain`.

python -m handoff.infra.documenting.glossary docs/glossary.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from handoff.infra.documenting.folders import replace_section
from handoff.infra.explaining.explanations import words

SECTIONS = {"concept": "concepts", "title": "titles"}


def draw_words(kind: str) -> str:
    """Return a row for each word of the kind, `concept` or `title`."""
    lines = [
        f"| {', '.join(entry.names)} | {' '.join(filter(None, (entry.means, entry.see)))} |"
        for entry in words()
        if entry.kind == kind
    ]
    return "\n".join(["| word | meaning |", "|---|---|", *lines])


if __name__ == "__main__":
    for kind, section in SECTIONS.items():
        replace_section(Path(sys.argv[1]), section, draw_words(kind))
