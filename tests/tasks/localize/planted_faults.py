"""A compiler that is wrong in four places, as an extension: each shows in a model of its own.

Nothing here is used by a model without tanh, layer norm, or (with freezing) a linear layer.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._inductor import config, decomposition, freezing, lowering

from tests.tasks.optimize import scaling_operators  # noqa: F401 - an extension has to bring operators

aten = torch.ops.aten


def lower_tanh(x: Any) -> Any:
    """The lowering of tanh by a rational function that is right near 0 only."""
    lower = lowering.lowerings
    square = lower[aten.mul.Tensor](x, x)
    above = lower[aten.mul.Tensor](x, lower[aten.add.Tensor](square, 27.0))
    below = lower[aten.add.Tensor](lower[aten.mul.Tensor](square, 9.0), 27.0)
    return lower[aten.div.Tensor](above, below)


def decompose_layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """The decomposition of layer norm with an eps that is lost."""
    return _layer_norm(x, shape, weight, bias, 0.0)


def freeze(*arguments: Any, **named: Any) -> Any:
    """Freezing that halves the biases of linear layers."""
    frozen, kept = _freeze(*arguments, **named)
    packed = torch.ops.mkldnn._linear_pointwise.default
    for node in frozen.graph.find_nodes(op="call_function", target=packed):
        bias = node.args[2]
        name = f"half_of_{bias.name}"
        frozen.register_buffer(name, operator.attrgetter(bias.target)(frozen) * 0.5)
        with frozen.graph.inserting_before(node):
            half = frozen.graph.get_attr(name)
        half.meta = dict(bias.meta)
        node.update_arg(2, half)
    frozen.recompile()
    return frozen, kept


def rewrite_sin_of_square(graph: torch.fx.Graph) -> None:
    """A post-grad pass that takes sin(x * x) for sin(x) * x where nobody else wants the square."""
    for sine in graph.find_nodes(op="call_function", target=aten.sin.default):
        square = sine.args[0]
        if square.target is aten.mul.Tensor and len(square.users) == 1:
            with graph.inserting_before(sine):
                inner = graph.call_function(aten.sin.default, (square.args[0],))
                outer = graph.call_function(aten.mul.Tensor, (inner, square.args[1]))
            inner.meta, outer.meta = dict(sine.meta), dict(sine.meta)
            sine.replace_all_uses_with(outer)
            graph.erase_node(sine)
            graph.erase_node(square)


_freeze = freezing.freeze
_layer_norm = decomposition.decompositions[aten.native_layer_norm.default]
lowering.lowerings[aten.tanh.default] = lower_tanh
decomposition.decompositions[aten.native_layer_norm.default] = decompose_layer_norm
freezing.freeze = freeze
config.post_grad_custom_post_pass = rewrite_sin_of_square
