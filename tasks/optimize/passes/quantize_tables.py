"""Keep the rows of embedding tables as 8-bit integers."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import WeightPass
from handoff.tasks.optimize.passes.int8_rows import CallBuilder, add_int8_rows
from handoff.tasks.optimize.passes.state import replace_node, state_name

_ATEN = torch.ops.aten


class QuantizeTables(WeightPass):
    """Keep embedding tables as int8 with a scale for each row, at a quarter of the size.

    Before: `y = embedding(W, ids)`. After: `y = float32(embedding(Q, ids)) * scale[ids]`, where
    `Q = round(W / scale)` and `scale = max |W| / 127` of each row.

    Conditions: `W` `[rows, width]` is a float32 weight that nothing but look-ups use. Rounding
    moves what is looked up by about half a percent of its size, so the recipe's tolerance has to
    have room for it, or its metric. Worth it where tables are what the package weighs; fewer bytes
    are read for a row, too.
    """

    name: ClassVar[str] = "quantize-tables"
    rounds: ClassVar[bool] = True

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the look-ups in float32 tables."""
        return [
            node for node in program.graph.nodes
            if node.target is _ATEN.embedding.default
            and isinstance(table := node.args[0], torch.fx.Node)
            and (name := state_name(program, table))
            and program.state_dict[name].dtype is torch.float32
            and all(user.target is _ATEN.embedding.default for user in table.users)
        ]  # fmt: skip

    def call(self, program: ExportedProgram) -> bool:
        """Replace all look-ups, those in one table by its one copy."""
        self._quantized: dict[str, tuple[torch.fx.Node, torch.fx.Node]] = {}
        return super().call(program)

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace one of them."""
        table, ids = node.args[:2]
        assert isinstance(table, torch.fx.Node)
        name = state_name(program, table)
        assert name is not None
        if name not in self._quantized:
            self._quantized[name] = add_int8_rows(program, name)
        integers, scales = self._quantized[name]
        with program.graph.inserting_before(node):
            calls = CallBuilder(program.graph)
            rows = calls.add(
                _ATEN.to.dtype, calls.add(_ATEN.embedding.default, integers, ids), torch.float32
            )
            column = calls.add(_ATEN.unsqueeze.default, scales, 1)
            result = calls.add(
                _ATEN.mul.Tensor, rows, calls.add(_ATEN.embedding.default, column, ids)
            )
        result.meta = {**node.meta}
        replace_node(program, node, result)
