"""The tables of docs/glossary.md, in the words of `handoff explain`.

python -m handoff.infra.documenting.words docs/glossary.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from handoff.infra.documenting.folders import put
from handoff.infra.explaining.texts import words

SECTIONS = {"concept": "concepts", "title": "titles"}


def draw_words(kind: str) -> str:
    """Return a row for each word of the kind, `concept` or `title`."""
    lines = [
        f"| {', '.join(one.names)} | {' '.join(filter(None, (one.means, one.see)))} |"
        for one in words()
        if one.kind == kind
    ]
    return "\n".join(["| word | meaning |", "|---|---|", *lines])


if __name__ == "__main__":
    for kind, section in SECTIONS.items():
        put(Path(sys.argv[1]), section, draw_words(kind))
