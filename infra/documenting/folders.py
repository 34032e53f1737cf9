"""The picture of the folders in docs/how-it-works.md, and what each says of itself.

python -m handoff.infra.documenting.folders docs/how-it-works.md
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from handoff.artifacts.isolation import own_package

ROOMS = ("artifacts", "tasks", "flows", "infra")
_DRAWING = "<!-- example: drawing -->"
_WIDTH = 26


def draw_folders() -> str:
    """Return the listing: each room and its rooms, with the first sentence of its docstring."""
    return "\n".join(["```", *_list_rooms(Path(own_package()), ROOMS, 0), "```"])


def _list_rooms(folder: Path, names: tuple[str, ...], depth: int) -> Iterator[str]:
    for name in names:
        room = folder / name
        yield f"{'  ' * depth + name + '/':{_WIDTH}}{_first_sentence(room)}"
        subfolders = sorted(path.parent.name for path in room.glob("*/__init__.py"))
        yield from _list_rooms(room, tuple(subfolders), depth + 1)


def _first_sentence(room: Path) -> str:
    docstring = (
        ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    )
    return " ".join(docstring.split("\n\n")[0].split())


def replace_section(page: Path, name: str, text: str) -> None:
    """Write `text` between the page's two marks of that name."""
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    replace_section(Path(sys.argv[1]), "folders", f"{_DRAWING}\n{draw_folders()}")
