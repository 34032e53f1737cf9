"""Packs the weights of convolutions whose batch size is dynamic.

oneDNN computes with weights in a layout of blocks. With freezing, Inductor rearranges them once, at
compile time, but for a dynamic input size it leaves them as they are, so that each call does it
again. The layout is chosen by an input size; that of the trace serves here, as it does in Inductor
for bfloat16's linear layers. At a size for which oneDNN would choose another layout, it rearranges
the weights in the call, as it would have anyway (ideep's `reorder_if_differ_in`), but from one
layout of blocks to another it has only its slow reference for: four convolutions of EfficientNet
took 7 ms of 17 so, at a batch of 1. Those are left alone whose layout depends on the batch or on
the number of threads, as it does where an image is a single point (squeeze and excite).

Two more kinds are left alone. Transposed convolutions, packed for one size, give that size's
results. And with packed weights oneDNN's channels are last in whatever it returns, where Inductor
expects the other layout of what it can't tell apart: an image of one channel is the same in both
(`_prepare_convolution_fusion_create` in Inductor's mkldnn_ir.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._inductor.fx_passes import mkldnn_fusion
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import has_free_symbols, statically_known_true

from tasks.compiling.patching import moved, replaced

# What freezing calls when it has put oneDNN's operators in, and before it folds constants.
_HOOK = "_eliminate_duplicate_packed_nodes"
# Those of serving machines, on which oneDNN's choice depends.
_THREADS = (1, 2, 8, 32)


@contextmanager
def convolutions_packed() -> Iterator[None]:
    """Let freezing pack the weights of convolutions of dynamic sizes, too, in the body.

    Raises `EnvironmentLacking` where torch has moved what this leans on.
    """
    original = getattr(mkldnn_fusion, _HOOK, None)
    if original is None:
        raise moved(f"torch._inductor.fx_passes.mkldnn_fusion.{_HOOK}")

    def pack_first(module: torch.fx.GraphModule) -> object:
        for node in module.graph.find_nodes(
            op="call_function", target=torch.ops.mkldnn._convolution_pointwise.default
        ):
            _pack(node)
        return original(module)

    with replaced(mkldnn_fusion, _HOOK, pack_first):
        yield


def _pack(convolution: torch.fx.Node) -> None:
    image, weight, _, padding, stride, dilation, groups = convolution.args[:7]
    assert isinstance(image, torch.fx.Node)
    assert isinstance(weight, torch.fx.Node)
    size = image.meta["val"].shape
    if weight.op != "get_attr" or not has_free_symbols(size) or _is_ambiguous(convolution, size):
        return
    # Of a size that only the call tells (an unbacked one) the trace has none.
    fixed = [one.node.hint if isinstance(one, torch.SymInt) else one for one in size]
    if None in fixed:
        return
    graph = convolution.graph
    sizes = [
        fixed,
        [1 if isinstance(one, torch.SymInt) else at for one, at in zip(size, fixed, strict=True)],
    ]
    weights = operator.attrgetter(str(weight.target))(graph.owning_module)
    if not _layouts_agree(weights, [(padding, stride, dilation, groups, each) for each in sizes]):
        return
    with graph.inserting_before(convolution):
        packed = graph.call_function(
            torch.ops.mkldnn._reorder_convolution_weight,
            (weight, padding, stride, dilation, groups, fixed),
        )
    convolution.update_arg(1, packed)


def _layouts_agree(weights: torch.Tensor, settings: list[tuple[object, ...]]) -> bool:
    """Tell whether oneDNN lays the weights out alike in all settings, and on any machine."""
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
    return len(found) == 1


def _is_ambiguous(convolution: torch.fx.Node, size: torch.Size) -> bool:
    """Tell whether the image lies in memory as it would with its channels last."""
    made = convolution.meta["val"].shape
    return _is_one(size[1]) or (all(map(_is_one, size[2:])) and not all(map(_is_one, made[2:])))


def _is_one(size: int | torch.SymInt) -> bool:
    # Without a guard, which would narrow the range of a dynamic size.
    return bool(statically_known_true(size == 1))
