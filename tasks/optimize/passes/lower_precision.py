"""Compute the heavy operators in a lower precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.kernels.attention import computes_attention_in
from handoff.tasks.optimize.passes.base import Pass, PassBroken
from handoff.tasks.optimize.passes.batch_norm import CONVOLUTIONS
from handoff.tasks.optimize.passes.propagate_precision import propagate_precision
from handoff.tasks.optimize.passes.purity import written_tensors
from handoff.tasks.optimize.passes.state import retype_state, state_name

_ATEN = torch.ops.aten
_OWN_ATTENTION = torch.ops.handoff.attention.default
_OWN_GATES = torch.ops.handoff.squeeze_excite.default
_OWN_LAYOUT = torch.ops.handoff.channels_last.default
_REGIONS = {
    "linear": {_ATEN.linear.default, _OWN_GATES},
    "convolution": CONVOLUTIONS,
    "matmul": {_ATEN.matmul.default, _ATEN.bmm.default, _ATEN.mm.default, _ATEN.addmm.default},
    "attention": {_ATEN.scaled_dot_product_attention.default, _OWN_ATTENTION},
}
_BETWEEN = "between"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class LowerPrecision(Pass[ExportedProgram]):
    """Run linear layers, convolutions, products or attention in bfloat16 or float16.

    Before: `y = linear(x, W, b)`. After: `y = float32(linear(bf16(x), bf16(W), bf16(b)))`; weights
    that nothing else uses are kept in the lower precision, at half the size.

    Conditions: the operator's tensors are float32, but for a mask that tells which keys there are.
    What is between such operators stays in float32; with the word `between`, activations, sums,
    norms, pooling and changes of shape that follow them go on in the lower precision, which rounds
    more, and moves half the bytes.
    The pass rounds, so it is compared as it computes, and not in float64; the recipe's tolerance
    has to have room for it. The operators are those that autocast lowers on the CPU, too.
    """

    name: ClassVar[str] = "lower-precision"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    rounds: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, str]] = {
        "dtype": "bfloat16 or float16",
        "operators": "which ones, by commas: linear, convolution, matmul, attention, between",
    }
    forms: ClassVar[Mapping[str, str]] = {
        "dtype": "bfloat16|float16",
        "operators": r"( *(linear|convolution|matmul|attention|between) *(,|$))+(?<!,)",
    }

    def __init__(self, parameters: Mapping[str, str]) -> None:
        """Check the parameters; `UsageProblem` for a dtype or an operator that isn't known."""
        super().__init__(parameters)
        regions = [name.strip() for name in self.given["operators"].split(",")]
        self._dtype = _DTYPES[self.given["dtype"]]
        self._is_bfloat16 = self._dtype is torch.bfloat16
        self._targets = {target for name in regions for target in _REGIONS.get(name, ())}
        self._propagates = _BETWEEN in regions

    def call(self, program: ExportedProgram) -> bool:
        """Put casts around every such call."""
        calls = [node for node in program.graph.nodes if self._is_to_lower(node)]
        written = written_tensors(program.graph)
        lowered: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in calls:
            casts = {}
            for source in filter(_is_float32, _inputs_to_lower(node)):
                if source in written:
                    # What it holds at this call; a cast for all calls would miss later writes.
                    casts[source] = self._cast(program, source, node.prev)
                elif source not in lowered:
                    lowered[source] = self._lower(program, source, set(calls))
            _replace_arguments(node, {**lowered, **casts})
            _upcast(program, node, self._dtype)
        if calls and self._propagates:
            propagate_precision(
                program, self._dtype,
                lambda source, user: self._cast(program, source, user.prev),
                lambda node: _upcast(program, node, self._dtype),
            )  # fmt: skip
        return bool(calls)

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if one is left in float32."""
        left = [node.name for node in program.graph.nodes if self._is_to_lower(node)]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")

    def _is_to_lower(self, node: torch.fx.Node) -> bool:
        if node.target not in self._targets:
            return False
        inputs = [one for one in _inputs_to_lower(node) if _is_floating(one)]
        if not inputs or not all(map(_is_float32, inputs)):
            return False
        # Our own functions compute in bfloat16 alone.
        if node.target is _OWN_ATTENTION:
            return computes_attention_in(self._dtype, inputs[0].meta["val"].shape[-1])
        return node.target is not _OWN_GATES or self._is_bfloat16

    def _lower(
        self, program: ExportedProgram, source: torch.fx.Node, calls: set[torch.fx.Node]
    ) -> torch.fx.Node:
        """Return a node with the value of `source` in the lower precision."""
        if state_name(program, source) and set(source.users) <= calls:
            retype_state(program, source, self._dtype)
            return source
        if source.target is _OWN_LAYOUT and set(source.users) <= calls and self._is_bfloat16:
            # It rounds as it moves.
            source.args = (source.args[0], True)
            source.meta["val"] = source.meta["val"].to(self._dtype)
            return source
        return self._cast(program, source, _last_placeholder(program, source))

    def _cast(
        self, program: ExportedProgram, source: torch.fx.Node, behind: torch.fx.Node
    ) -> torch.fx.Node:
        with program.graph.inserting_after(behind):
            cast: torch.fx.Node = program.graph.call_function(_ATEN.to.dtype, (source, self._dtype))
        cast.meta["val"] = source.meta["val"].to(self._dtype)
        return cast


def _inputs_to_lower(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return what a call is given that is to be rounded; our own attention's mask never is."""
    if node.target is not _OWN_ATTENTION:
        return node.all_input_nodes
    return [one for one in node.all_input_nodes if one in node.args[:3]]


def _replace_arguments(
    node: torch.fx.Node, replacements: Mapping[torch.fx.Node, torch.fx.Node]
) -> None:
    """Give a call other nodes instead of its own."""
    node.args = torch.fx.node.map_arg(node.args, lambda n: replacements.get(n, n))
    node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: replacements.get(n, n))


def _upcast(program: ExportedProgram, node: torch.fx.Node, dtype: torch.dtype) -> None:
    """Cast a call's result back to float32 for all that use it."""
    value = node.meta["val"]
    with program.graph.inserting_after(node):
        result: torch.fx.Node = program.graph.call_function(_ATEN.to.dtype, (node, torch.float32))
    result.meta["val"] = value
    node.meta["val"] = value.to(dtype)
    node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)
    program.graph_signature.replace_all_uses(node.name, result.name)


def _last_placeholder(program: ExportedProgram, source: torch.fx.Node) -> torch.fx.Node:
    """Return where a cast may stand: behind `source`, and behind every placeholder."""
    if source.op != "placeholder":
        return source
    placeholders: list[torch.fx.Node] = list(program.graph.find_nodes(op="placeholder"))
    return placeholders[-1]


def _is_floating(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_float32(node: torch.fx.Node) -> bool:
    return _is_floating(node) and node.meta["val"].dtype is torch.float32
