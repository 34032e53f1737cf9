"""What the layers that take an input say of it: dtype, channels, features, vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.fx
from torch import nn

# An axis that no layer fixes, and the sizes that are tried for it, the likeliest first.
SPATIAL = "spatial"
LENGTH = "length"
BATCH = "batch"

Axis = int | str

_SHAPE_KEEPING = frozenset((
    "relu", "dropout", "to", "float", "long", "clone", "contiguous", "gelu", "tanh", "sigmoid",
    "_to_copy", "mul", "add", "sub", "truediv", "div",
))  # fmt: skip
_REARRANGING = frozenset((
    "getitem", "where", "select", "slice", "view", "reshape", "flatten", "transpose", "permute",
    "unsqueeze", "squeeze", "clamp", "masked_fill",
))  # fmt: skip

# Heights and widths that models are trained with, the commonest first.
_IMAGE_SIDES = (224, 256, 128, 64, 32, 28, 299, 512, 16, 8, 1000, 16000)
_VOLUME_SIDES = (64, 32, 16, 128, 8)


@dataclass(frozen=True)
class Hint:
    """What one consumer says of an input: dtype, shapes that may do, value range, and its name."""

    dtype: str
    shapes: tuple[tuple[Axis, ...], ...]
    why: str
    low: float | None = None
    high: float | None = None


def find_hint(module: torch.fx.GraphModule, placeholder: torch.fx.Node) -> Hint | None:
    """Return the hint of the first consumer of an input that gives one, or None.

    The search goes through what keeps an input's values: dropouts, activations, casts; and through
    what takes parts or moves axes, behind which dtype and values are known but no shape.
    """
    queue, seen = [(placeholder, True)], set()
    while queue:
        node, keeps_shape = queue.pop(0)
        for user in node.users:
            hint = _hint_of(module, user, node)
            if hint is not None:
                return hint if keeps_shape else replace(hint, shapes=())
            passes, keeps = _propagates(module, user, node)
            if passes and user not in seen:
                seen.add(user)
                queue.append((user, keeps_shape and keeps))
    return None


def _propagates(
    module: torch.fx.GraphModule, user: torch.fx.Node, value: torch.fx.Node
) -> tuple[bool, bool]:
    """Return whether a consumer hands on the values, and whether their shape too."""
    if user.op == "call_module":
        kinds = (nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid)
        return isinstance(module.get_submodule(str(user.target)), kinds), True
    name = getattr(user.target, "__name__", str(user.target)).partition(".")[0]
    if name in _REARRANGING:
        return not user.args or user.args[0] is not value or name != "where", False
    return name in _SHAPE_KEEPING, True


def _hint_of(
    module: torch.fx.GraphModule, user: torch.fx.Node, value: torch.fx.Node
) -> Hint | None:
    if user.op == "call_module":
        if not user.args or user.args[0] is not value:
            return None
        return _hint_of_layer(module.get_submodule(str(user.target)), str(user.target))
    name = getattr(user.target, "__name__", "").partition(".")[0]
    return _hint_of_function(module, name, user, value)


def _hint_of_layer(layer: nn.Module, name: str) -> Hint | None:
    label = f"it feeds {name} ({type(layer).__name__})"
    dtype = next((str(p.dtype).removeprefix("torch.") for p in layer.parameters()), "float32")
    match layer:
        case nn.Embedding() | nn.EmbeddingBag():
            return _id_hint(
                layer.num_embeddings, f"{label}, a table of {layer.num_embeddings} rows"
            )
        case nn.Linear():
            shapes: tuple[tuple[Axis, ...], ...] = ((BATCH, layer.in_features),
                                                   (BATCH, LENGTH, layer.in_features))  # fmt: skip
            return Hint(dtype, shapes, f"{label}, which takes {layer.in_features} features")
        case nn.modules.conv._ConvNd():
            spatial = (SPATIAL,) * len(layer.kernel_size)
            why = f"{label}, which takes {layer.in_channels} channels"
            return Hint(dtype, ((BATCH, layer.in_channels, *spatial),), why)
        case nn.modules.batchnorm._BatchNorm():
            rank = {"BatchNorm2d": 2, "BatchNorm3d": 3}.get(type(layer).__name__, 0)
            return Hint(dtype, ((BATCH, layer.num_features, *(SPATIAL,) * rank),), label)
        case nn.LayerNorm():
            normalized = tuple(layer.normalized_shape)
            return Hint(dtype, ((BATCH, *normalized), (BATCH, LENGTH, *normalized)), label)
        case nn.RNNBase():
            order = (BATCH, LENGTH) if layer.batch_first else (LENGTH, BATCH)
            return Hint(dtype, ((*order, layer.input_size),), label)
        case nn.TransformerEncoderLayer():
            attention = layer.self_attn
            order = (BATCH, LENGTH) if attention.batch_first else (LENGTH, BATCH)
            return Hint(dtype, ((*order, attention.embed_dim),), label)
        case nn.MultiheadAttention():
            order = (BATCH, LENGTH) if layer.batch_first else (LENGTH, BATCH)
            return Hint(dtype, ((*order, layer.embed_dim),), label)
    return None


def _id_hint(rows: int, why: str) -> Hint:
    return Hint("int64", ((BATCH, LENGTH), (BATCH,)), why, 0.0, float(rows - 1))


def _hint_of_function(
    module: torch.fx.GraphModule, name: str, user: torch.fx.Node, value: torch.fx.Node
) -> Hint | None:
    """Return the hint of a functional call, whose weight lies in the module."""
    weights = [_get_weight(module, arg) for arg in user.args]
    shapes = [tuple(weight.shape) for weight in weights if weight is not None and weight.dim() > 1]
    if not shapes:
        return None
    shape = shapes[0]
    dtype = next(str(w.dtype).removeprefix("torch.") for w in weights if w is not None)
    label = f"it feeds a {name}"
    if name == "embedding" and value in user.args:
        return _id_hint(shape[0], f"{label} of {shape[0]} rows")
    if user.args[0] is not value:
        return None
    if name == "linear":
        why = f"{label} of {shape[1]} features"
        return Hint(dtype, ((BATCH, shape[1]), (BATCH, LENGTH, shape[1])), why)
    if name.startswith("conv"):
        groups = user.args[6] if name != "convolution" and len(user.args) > 6 else 1
        groups = user.args[8] if name == "convolution" and len(user.args) > 8 else groups
        channels = shape[1] * (groups if isinstance(groups, int) else 1)
        spatial = (SPATIAL,) * (len(shape) - 2)
        return Hint(dtype, ((BATCH, channels, *spatial),), f"{label} of {channels} channels")
    return None


def _get_weight(module: torch.fx.GraphModule, argument: object) -> torch.Tensor | None:
    if not isinstance(argument, torch.fx.Node) or argument.op != "get_attr":
        return None
    prefix, _, last = str(argument.target).rpartition(".")
    found = getattr(module.get_submodule(prefix), last, None)
    return found if isinstance(found, torch.Tensor) else None


def candidate_shapes(hint: Hint | None) -> Iterator[tuple[Axis, ...]]:
    """Give the shapes to try: what the hint says, with likely sizes for what it leaves open."""
    if hint is None:
        return
    for shape in hint.shapes:
        if SPATIAL in shape:
            for size in _VOLUME_SIDES if shape.count(SPATIAL) > 2 else _IMAGE_SIDES:
                yield tuple(size if axis == SPATIAL else axis for axis in shape)
        else:
            yield shape
