"""Which line of the training side's code made each node: written beside the delivery."""

from __future__ import annotations

import json
from pathlib import Path

import torch.fx

from handoff.artifacts.delivery.contract import SOURCES_FILE
from handoff.tasks.deliver.capture.lines import line_of_trace, written_line


def write_sources(module: torch.fx.GraphModule, folder: Path) -> None:
    """Write `sources.json`: for each node of the graph its `file.py:line`, where that is known."""
    lines = {}
    for node in module.graph.nodes:
        line = node.meta.get("source") or line_of_trace(node.meta.get("stack_trace") or "")
        if line is not None and node.op.startswith("call_"):
            lines[node.name] = written_line(line)
    text = json.dumps(lines, indent=0, sort_keys=True) + "\n"
    (folder / SOURCES_FILE).write_text(text, encoding="utf-8")
