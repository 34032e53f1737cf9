"""From a node of the exported program back to the delivered node, and to the lines it stands on.

`torch.export` notes in `meta["from_node"]` which node of the module that it captured each ATen node
came from, and that survives the program's file; so do the decompositions and passes that copy
`meta`. The delivered module is read again, since only its own nodes know their lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.fx

from handoff.artifacts.delivery.contract import MODULE_FILE
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.localize.messages import FaultyNode


class Origins:
    """Tells where the nodes of a program come from."""

    def __init__(self, delivery: LoadedDelivery, staging: Path) -> None:
        """Take the delivery that the program was made of."""
        self._delivered: Mapping[str, torch.fx.Node] = {
            node.name: node for node in delivery.module.graph.nodes
        }
        self._lines = (staging / MODULE_FILE).read_text(encoding="utf-8").splitlines()

    def of(self, node: torch.fx.Node) -> FaultyNode:
        """Return the node with its lines; without, where a pass has made it of nothing known."""
        made = FaultyNode(node.name, str(node.target))
        for name, target in _sources(node.meta.get("from_node", ())):
            delivered = self._delivered.get(name)
            # A pass may have made another node of the same name.
            if delivered is None or _plain(str(delivered.target)) != _plain(target):
                continue
            line = delivered.meta.get("module_line", 0)
            if not 1 <= line <= len(self._lines):
                continue
            return FaultyNode(
                node.name, str(node.target), f"{MODULE_FILE}:{line}",
                self._lines[line - 1].strip(), delivered.meta.get("source_line", ""),
            )  # fmt: skip
        return made


def _sources(chain: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - torch's NodeSource
    """Give name and target of all that a node came from, the oldest first."""
    for source in chain:
        yield from _sources(source.from_node)
        yield source.name, source.target


def _plain(target: str) -> str:
    # A function's repr ends with its address, which each process has another of.
    return target.partition(" at 0x")[0]
