"""Reads which line of the training side's code made each node."""

from __future__ import annotations

import re
from pathlib import Path

import torch.fx

from handoff.artifacts.delivery.contract import SOURCES_FILE
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.tasks.intake.errors import refuse

_LINE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}:[0-9]{1,7}")
_MAX_BYTES = 16 << 20


def attach_sources(module: torch.fx.GraphModule, path: Path) -> None:
    """Give each node its `meta["source_line"]`, such as `models/net.py:12`, where `path` says it.

    Raises `DeliveryUnreadable` for a file that holds anything but lines by node.
    """
    if not path.exists():
        return
    if path.stat().st_size > _MAX_BYTES:
        raise _refuse(f"at most {_MAX_BYTES} bytes", f"{path.stat().st_size}")
    try:
        lines = parse_json(path.read_bytes())
    except ValueError as error:
        raise _refuse("JSON", str(error)) from error
    if not isinstance(lines, dict):
        raise _refuse("an object", type(lines).__name__)
    for name, line in lines.items():
        if not isinstance(line, str) or not _LINE.fullmatch(line) or ".." in line:
            raise _refuse(f"a line such as net.py:12 for {name[:60]}", line)
    for node in module.graph.nodes:
        if node.name in lines:
            node.meta["source_line"] = lines[node.name]


def _refuse(expected: str, got: object) -> Exception:
    return refuse(
        f"{SOURCES_FILE} doesn't say which lines made the graph",
        expected=expected,
        got=got,
        where=SOURCES_FILE,
        remedy="Remove the file, which is not needed; or deliver the model again",
    )
