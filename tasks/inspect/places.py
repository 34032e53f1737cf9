"""Where a finding is: its line in module.py, and in the training side's code if that is known."""

from __future__ import annotations

import torch.fx


def place_of(node: torch.fx.Node) -> str:
    """Return `module.py:12`, or `module.py:12 (models/net.py:40)`."""
    line = node.meta.get("module_line")
    place = "module.py" if line is None else f"module.py:{line}"
    source = node.meta.get("source_line")
    return place if source is None else f"{place} ({source})"
