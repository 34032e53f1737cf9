"""Compute attention on the CPU by a function of our own."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from handoff.tasks.optimize.kernels.attention import computes_attention_in
from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.state import add_call, arguments_of, copy_metadata, replace_node

_ATEN = torch.ops.aten
_OPERATOR = torch.ops.handoff.attention.default
# Of keys: a block's scores stay in a core's own cache.
_LONGEST = 1024
_LANES = 16


class CpuAttention(NodePass[ExportedProgram]):
    """Call a function of our own for attention over at most 1024 keys.

    Before: `y = scaled_dot_product_attention(q, k, v, mask)`. After: `y = handoff.attention(q, k,
    v, mask, scale)`, which on the CPU becomes a C++ function inside the package: it reads keys and
    values where they lie, keeps a block's scores in the cache, and has its products written for the
    registers of AVX-512 or AVX2, where torch calls MKL for each block. On CUDA it is torch's own.

    Conditions: float32, or bfloat16 with heads of an even size, as many keys as the graph says,
    heads whose size it says and whose values are a multiple of 16 numbers, batch and number of
    heads the same everywhere, no dropout, and a mask that is given instead of implied. Whether it
    is faster depends on model and machine, so let a search decide.
    """

    name: ClassVar[str] = "cpu-attention"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the calls of attention that the function can compute."""
        target = _ATEN.scaled_dot_product_attention.default
        return [
            node for node in program.graph.find_nodes(op="call_function", target=target)
            if _is_supported(arguments_of(node))
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it."""
        arguments = arguments_of(node)
        parts = [arguments[name] for name in ("query", "key", "value")]
        mask, scale, graph = arguments["attn_mask"], arguments["scale"], node.graph
        if scale is None:
            scale = 1 / math.sqrt(parts[0].meta["val"].shape[-1])
        with graph.inserting_before(node):
            if mask is not None and mask.meta["val"].dtype is torch.bool:
                mask = add_call(graph, _ATEN.where.Scalar, (mask, 0.0, -math.inf))
            result = add_call(graph, _OPERATOR, (*parts, mask, scale))
            if is_contiguous_or_false(node.meta["val"]):
                # Torch's has the function's layout unless it is computed as two products, which it
                # is where keys and values differ in size.
                result = add_call(graph, _ATEN.contiguous.default, (result,))
        copy_metadata(result, node)
        replace_node(program, node, result)


def _is_supported(arguments: dict[str, Any]) -> bool:
    if arguments["dropout_p"] or arguments["is_causal"] or arguments["enable_gqa"]:
        return False
    query, key, value = (arguments[name].meta["val"] for name in ("query", "key", "value"))
    mask = arguments["attn_mask"]
    dtype = query.dtype
    keys, depth, width = key.shape[-2], query.shape[-1], value.shape[-1]
    return (
        all(one.dtype is dtype and one.dim() == 4 for one in (query, key, value))
        and all(_has_same_heads(one, query) for one in (key, value))
        and (mask is None or mask.meta["val"].dtype in (dtype, torch.bool))
        and (arguments["scale"] is None or isinstance(arguments["scale"], float))
        and isinstance(keys, int) and 0 < keys <= _LONGEST
        and isinstance(depth, int) and depth > 0 and computes_attention_in(dtype, depth)
        and isinstance(width, int) and width > 0 and width % _LANES == 0
    )  # fmt: skip


def _has_same_heads(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether batch and heads are certainly the same: torch would broadcast those of 1."""
    pairs = zip(one.shape[:2], other.shape[:2], strict=True)
    return all(bool(statically_known_true(a == b)) for a, b in pairs)
