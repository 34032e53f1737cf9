"""Compute linear layers on the CPU by a function of our own."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.kernels.pointwise import pack
from handoff.tasks.optimize.passes.base import WeightPass
from handoff.tasks.optimize.passes.following import follow, replace_chain
from handoff.tasks.optimize.passes.purity import is_written_behind, last_writes
from handoff.tasks.optimize.passes.state import (
    RepackedWeights,
    add_call,
    arguments_of,
    is_constant,
    skip_shapes,
    state_name,
)

_ATEN = torch.ops.aten
_OPERATOR = torch.ops.handoff.rows.default
# Behind which oneDNN's own layer has an activation that the function hasn't.
_LEFT_ALONE = {_ATEN.gelu.default, _ATEN.gelu_.default, _ATEN.tanh.default, _ATEN.tanh_.default}


class CpuLinear(WeightPass):
    """Call a function of our own for linear layers.

    Before: `y = relu(linear(x, W, b) + r)`. After: `y = handoff.rows(x, W', b, r, ...)`, which on
    the CPU becomes a C++ function inside the package, with what follows the layer in it. Large
    products take as long as oneDNN's, and small ones, of which recommenders and tables' networks
    consist, less: a call of oneDNN's takes longer than they do. On CUDA it is the same operators as
    before.

    Conditions: float32, weights of the program's own, and no GELU or tanh behind the layer, which
    oneDNN computes within it. Whether it is faster depends on model and machine, so let a search
    decide.
    """

    name: ClassVar[str] = "cpu-linear"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the layers that the function can compute."""
        writes = last_writes(program.graph)
        layers = program.graph.find_nodes(op="call_function", target=_ATEN.linear.default)
        return [node for node in layers if _is_supported(program, node, writes)]

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace one, and what follows it alone."""
        arguments = arguments_of(node)
        chain, added, activation = follow(node, last_writes(program.graph), sums=True)
        weight = self._weights.add(arguments["weight"], "rows", pack)
        channels = arguments["weight"].meta["val"].shape[0]
        with node.graph.inserting_before(chain[-1]):
            result = add_call(
                node.graph, _OPERATOR,
                (arguments["input"], weight, arguments["bias"], added, channels, activation),
            )  # fmt: skip
        replace_chain(program, chain, result)

    def call(self, program: ExportedProgram) -> bool:
        """Replace them all; layers that share weights go on sharing them."""
        self._weights = RepackedWeights(program)
        return super().call(program)

    def clean_up(self, program: ExportedProgram) -> None:
        """Drop the weights as the layers had them."""
        program.graph.eliminate_dead_code()
        super().clean_up(program)


def _is_supported(
    program: ExportedProgram, node: torch.fx.Node, writes: dict[torch.fx.Node, torch.fx.Node]
) -> bool:
    arguments = arguments_of(node)
    given, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    state = skip_shapes(weight)
    tensors = [one for one in (given, weight, bias) if one is not None]
    return (
        all(one.meta["val"].dtype is torch.float32 for one in tensors)
        and given.meta["val"].dim() > 1 and weight.meta["val"].dim() == 2
        and bool(state_name(program, state)) and state not in writes
        and (bias is None or is_constant(program, bias, writes))
        # What it is given isn't written to behind it, where the function may come to stand.
        and not is_written_behind(given, writes)
        and not any(user.target in _LEFT_ALONE for user in node.users)
    )  # fmt: skip
