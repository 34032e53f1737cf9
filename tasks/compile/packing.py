"""Packs the weights of convolutions whose batch size is dynamic, and not all of linear layers.

oneDNN computes with weights in a layout of blocks. With freezing, Inductor rearranges them once, at
compile time, but for a dynamic input size it leaves them as they are, so that each call does it
again. The layout is chosen by input size and number of threads: by how many blocks of output
channels all threads have enough to do. A large batch's serves here, which is the same for any
number of threads. At a size for which oneDNN would choose another layout, it rearranges the weights
in the call, as it would have anyway (ideep's `reorder_if_differ_in`). Between blocks of which one
divides the other, it has compiled code for that, which takes no longer than from unpacked weights;
else only its slow reference: four convolutions of EfficientNet took 7 ms of 17 so, at a batch of 1.
Those are left alone where that may happen. It is the same for the layout of AMX's tiles, pairs of
bfloat16 in blocks of 16 by the output channels': one image on 32 threads has other blocks than all
else, and eight of ResNet-18's weights were rearranged in each call, a sixth of its time.

Two more kinds are left alone. Transposed convolutions, packed for one size, give that size's
results. And with packed weights oneDNN's channels are last in whatever it returns, where Inductor
expects the other layout of what it can't tell apart: an image of one channel is the same in both
(`_prepare_convolution_fusion_create` in Inductor's mkldnn_ir.py).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._inductor.fx_passes import mkldnn_fusion
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import has_free_symbols, statically_known_true

from handoff.artifacts.recipe.target import ArmTarget, CpuTarget
from handoff.tasks.compile.patching import missing_internal, patch_attribute

_ATEN = torch.ops.aten

# What freezing calls when it has put oneDNN's operators in, and before it folds constants.
_HOOK = "_eliminate_duplicate_packed_nodes"
# Those of serving machines, on which oneDNN's choice depends.
_THREADS = (1, 2, 8, 32)
# A batch that gives all threads enough to do, so that the layout is the same on any machine.
_LARGE_BATCH = 1024
# What is read of oneDNN's description of a layout (`memory_desc_t` of oneDNN 3): the number of
# axes, four sizes of twelve, the padded sizes, the number of blocks, the first three's sizes and
# axes. What doesn't agree with the weights' shape is no layout that is known here.
_LAYOUT = "<4xi4q72x4q272xi4x3q72x3q"


@contextmanager
def pack_convolutions() -> Iterator[None]:
    """Let freezing pack the weights of convolutions of dynamic sizes, too, in the body.

    Raises `EnvironmentLacking` where torch has moved what this leans on.
    """
    with _before_constant_folding(torch.ops.mkldnn._convolution_pointwise.default, _pack):
        yield


@contextmanager
def leave_linears_to_mkl(target: CpuTarget | ArmTarget) -> Iterator[None]:
    """Let freezing leave linear layers of a dynamic size to MKL, where the target has no AVX-512.

    It makes oneDNN's operators of them, while torch calls MKL for a layer that isn't frozen. On an
    EPYC with AVX2 alone, BERT took 1.41 times as long with them and ConvNeXt 1.15 times, though the
    same products alone take oneDNN less (docs/performance.md). Raises `EnvironmentLacking` where
    torch has moved what this leans on.
    """
    if not isinstance(target, CpuTarget) or "avx512f" in target.cpu_flags:
        yield
        return
    with _before_constant_folding(torch.ops.mkldnn._linear_pointwise.default, _unpack):
        yield


@contextmanager
def _before_constant_folding(
    operator: torch._ops.OpOverload, change: Callable[[torch.fx.Node], None]
) -> Iterator[None]:
    original = getattr(mkldnn_fusion, _HOOK, None)
    if original is None:
        raise missing_internal(f"torch._inductor.fx_passes.mkldnn_fusion.{_HOOK}")

    def change_then_call(module: torch.fx.GraphModule) -> object:
        for node in module.graph.find_nodes(op="call_function", target=operator):
            change(node)
        return original(module)

    with patch_attribute(mkldnn_fusion, _HOOK, change_then_call):
        yield


def _unpack(linear: torch.fx.Node) -> None:
    """Put a product in the place of oneDNN's layer of float32, `[..., K]` to `[..., N]`."""
    rows, packed, bias = linear.args[:3]
    assert isinstance(rows, torch.fx.Node)
    assert isinstance(packed, torch.fx.Node)
    # Inductor calls the packet of overloads, not the only one that there is.
    if packed.target is not torch.ops.mkldnn._reorder_linear_weight:
        return
    transposed = packed.args[0]
    assert isinstance(transposed, torch.fx.Node)
    if transposed.target is not _ATEN.permute.default:
        return
    weight = transposed.args[0]
    assert isinstance(weight, torch.fx.Node)
    rows_value, weight_value, output_value = (
        node.meta.get("val") for node in (rows, weight, linear)
    )
    # What Inductor itself put in may lack its value; other dtypes are oneDNN's.
    if (
        rows_value is None
        or output_value is None
        or weight_value is None
        or weight_value.dtype is not torch.float32
    ):
        return
    graph = linear.graph
    with graph.inserting_before(linear):
        # Inductor has taken away the views that an exported layer has around its product.
        flat = _insert_reshape(rows, [-1, rows_value.shape[-1]]) if rows_value.dim() > 2 else rows
        product = (
            graph.call_function(_ATEN.mm.default, (flat, weight))
            if bias is None
            else graph.call_function(_ATEN.addmm.default, (bias, flat, weight))
        )
        product.meta["val"] = output_value.reshape(-1, output_value.shape[-1])
        if rows_value.dim() > 2:
            sizes = [_insert_size(rows, axis) for axis in range(rows_value.dim() - 1)]
            product = _insert_reshape(product, [*sizes, output_value.shape[-1]])
    product.meta.update(linear.meta)
    linear.replace_all_uses_with(product)
    for node in (linear, packed, transposed):
        if not node.users:
            graph.erase_node(node)


def _insert_reshape(node: torch.fx.Node, sizes: list[int | torch.fx.Node]) -> torch.fx.Node:
    reshape = node.graph.call_function(_ATEN.reshape.default, (node, sizes))
    values = [one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in sizes]
    reshape.meta["val"] = node.meta["val"].reshape(values)
    return reshape


def _insert_size(node: torch.fx.Node, axis: int) -> int | torch.fx.Node:
    size = node.meta["val"].shape[axis]
    if not isinstance(size, torch.SymInt):
        return int(size)
    sym_size = node.graph.call_function(_ATEN.sym_size.int, (node, axis))
    sym_size.meta["val"] = size
    return sym_size


def _pack(convolution: torch.fx.Node) -> None:
    image, weight, _, padding, stride, dilation, groups = convolution.args[:7]
    assert isinstance(image, torch.fx.Node)
    assert isinstance(weight, torch.fx.Node)
    size = image.meta["val"].shape
    if weight.op != "get_attr" or not has_free_symbols(size) or _is_ambiguous(convolution, size):
        return
    # Of a size that only the call knows (an unbacked one) the trace has none.
    traced = [one.node.hint if isinstance(one, torch.SymInt) else one for one in size]
    if None in traced:
        return
    graph = convolution.graph
    smallest = [1 if isinstance(one, torch.SymInt) else one for one in size]
    largest = [_LARGE_BATCH, *traced[1:]] if isinstance(size[0], torch.SymInt) else traced
    weights = operator.attrgetter(str(weight.target))(graph.owning_module)
    settings = (padding, stride, dilation, groups)
    preferred = _layouts(weights, [(*settings, largest)])
    if len(preferred) != 1:
        return
    others = _layouts(weights, [(*settings, size) for size in (traced, smallest)]) - preferred
    if not all(_converts_fast(weights, one, *preferred) for one in others):
        return
    with graph.inserting_before(convolution):
        packed = graph.call_function(
            torch.ops.mkldnn._reorder_convolution_weight, (weight, *settings, largest)
        )
    convolution.update_arg(1, packed)


def _layouts(weights: torch.Tensor, settings: list[tuple[object, ...]]) -> set[bytes]:
    """Return how oneDNN lays the weights out in any of the settings, on any machine."""
    found: set[bytes] = set()
    threads = torch.get_num_threads()
    with unset_fake_temporarily():
        try:
            for count in _THREADS:
                torch.set_num_threads(count)
                for setting in settings:
                    packed = torch.ops.mkldnn._reorder_convolution_weight(weights, *setting)
                    layout = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
                    found.add(bytes(layout.tolist()))
        finally:
            torch.set_num_threads(threads)
    return found


def _converts_fast(weights: torch.Tensor, one: bytes, other: bytes) -> bool:
    """Return whether oneDNN has compiled code between the layouts, not just a reference."""
    found = [block_size(layout, weights.shape, weights.dtype) for layout in (one, other)]
    return 0 not in found and max(found) % min(found) == 0


def block_size(layout: bytes, shape: torch.Size, dtype: torch.dtype) -> int:
    """Return how many output channels lie beside each other; 0 for a layout that isn't known here.

    `layout` is oneDNN's description of how weights of the given shape and type lie: blocks of
    output channels alone for float32, those for AMX's tiles for bfloat16, where what doesn't fill a
    block is padded.
    """
    if len(layout) < struct.calcsize(_LAYOUT):
        return 0
    axes, *fields = struct.unpack_from(_LAYOUT, layout)
    sizes, padded, count, *blocks = fields[:4], fields[4:8], *fields[8:]
    if axes != len(shape) or sizes != list(shape):
        return 0
    # Each block's size and axis: 0 is that of the output channels, 1 of the input channels.
    layout_blocks: list[tuple[int, int]] = list(zip(blocks[:3], blocks[3:], strict=True))[:count]
    match layout_blocks:
        case [(size, 0)] if dtype is torch.float32 and padded == sizes:
            return size
        case [(16, 1), (size, 0), (2, 1)] if dtype is torch.bfloat16:
            return size
    return 0


def _is_ambiguous(convolution: torch.fx.Node, size: torch.Size) -> bool:
    """Return whether the image lies in memory as it would with its channels last."""
    output_shape = convolution.meta["val"].shape
    return _is_one(size[1]) or (
        all(map(_is_one, size[2:])) and not all(map(_is_one, output_shape[2:]))
    )


def _is_one(size: int | torch.SymInt) -> bool:
    # Without a guard, which would narrow the range of a dynamic size.
    return bool(statically_known_true(size == 1))
