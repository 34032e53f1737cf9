"""The capture methods, in the order of trying: a module becomes what `to_folder` can write.

`torch.export` keeps `with torch.no_grad()` and `with torch.autocast(enabled=False)` as operators of
higher order around subgraphs. A package computes without gradients and without autocast, so what
was inside computes the same outside.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.fx
from torch import nn
from torch.utils import _pytree as pytree

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.tasks.deliver.capture.calls import Call
from handoff.tasks.deliver.capture.tracer import (
    describe_dropped_input,
    describe_left_out,
    trace_for_inference,
    without_training_modules,
)
from handoff.tasks.optimize import capture
from handoff.tasks.optimize.capture import dynamic_shapes, inputs_to_trace


def inline_idle_contexts(module: torch.fx.GraphModule) -> None:
    """Put the subgraphs of contexts that change nothing in their calls' places, in `module`."""
    graph = module.graph
    while True:
        found = [node for node in graph.nodes if _idle_context_body(module, node) is not None]
        if not found:
            break
        for node in found:
            _inline_context(module, node)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users and isinstance(getattr(module, str(node.target), None), torch.nn.Module):
            graph.erase_node(node)
    module.delete_all_unused_submodules()
    graph.lint()
    module.recompile()


def _idle_context_body(
    module: torch.fx.GraphModule, node: torch.fx.Node
) -> tuple[torch.fx.GraphModule, tuple[torch.fx.node.Argument, ...]] | None:
    """Return what an idle context holds and is called with; None for every other node."""
    match str(node.target), node.args:
        case "wrap_with_set_grad_enabled", (bool(), torch.fx.Node() as body, *args):
            pass
        case "wrap_with_autocast", (_, _, False, _, torch.fx.Node() as body, *args):
            pass
        case _:
            return None
    subgraph = getattr(module, str(body.target), None) if body.op == "get_attr" else None
    if node.kwargs or not isinstance(subgraph, torch.fx.GraphModule):
        return None
    return subgraph, tuple(args)


def _inline_context(module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    context = _idle_context_body(module, node)
    assert context is not None
    inner, args = context
    placeholders = inner.graph.find_nodes(op="placeholder")
    val_map: dict[torch.fx.Node, torch.fx.Node] = {}
    for placeholder, argument in zip(placeholders, args, strict=True):
        assert isinstance(argument, torch.fx.Node)
        val_map[placeholder] = argument
    with module.graph.inserting_before(node):
        result = module.graph.graph_copy(inner.graph, val_map)
    values = result if isinstance(result, (tuple, list)) else (result,)
    for user in list(node.users):
        assert user.op == "call_function"
        assert user.target is operator.getitem
        value = values[user.args[1]]  # type: ignore[index]
        assert isinstance(value, torch.fx.Node)
        user.replace_all_uses_with(value)
        module.graph.erase_node(user)
    module.graph.erase_node(node)
    for name in {str(n.target) for n in inner.graph.find_nodes(op="get_attr")}:
        setattr(module, name, getattr(inner, name))


@dataclass(frozen=True)
class CapturedGraph:
    """A captured graph, the inputs that it takes (by name, in order), and notes on it."""

    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CaptureRequest:
    """What is to be captured: the module, how it is called, and the sizes that are to hold.

    `left_out` says which modules an eager run left out, by class; `rows` are the example's inputs,
    of the signature's shapes and dtypes, where others are to be drawn from those.
    """

    module: nn.Module
    call: Call
    signature: ModelSignature
    left_out: Mapping[str, int]
    rows: Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class CaptureMethod:
    """A way of capturing: its name in the contract, and the function that captures."""

    name: str
    capture: Callable[[CaptureRequest], CapturedGraph]


def trace(request: CaptureRequest) -> CapturedGraph:
    """Capture by `torch.fx`: the graph of layers, as seed 000 delivers it."""
    traced, notes = trace_for_inference(request.module, request.call)
    traced.eval()
    traced.delete_all_unused_submodules()
    return _to_captured_graph(traced, notes)


def export(request: CaptureRequest, *, strict: bool) -> CapturedGraph:
    """Capture by `torch.export`: the graph of ATen operators, without guards and input trees.

    `strict` reads the forward's bytecode (Dynamo) where the other runs the forward.
    """
    signature, call, left_out = request.signature, request.call, request.left_out
    tensors = inputs_to_trace(signature, request.rows)
    args, kwargs = call.bind(tensors)
    collected = torch.export.ShapesCollection()
    for tensor, axes in zip(tensors, dynamic_shapes(signature), strict=True):
        collected[tensor] = axes
    shapes = collected.dynamic_shapes(request.module, args, kwargs)
    with without_training_modules():
        program = capture.export(request.module, args, kwargs, shapes, signature, strict=strict)
    unlifted = program.module(check_guards=False)
    assert isinstance(unlifted, torch.fx.GraphModule)
    inline_idle_contexts(unlifted)
    graph = unlifted.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    _drop_losses(graph, call)
    notes = list(describe_left_out(left_out))
    inputs = _name_inputs(graph, call)
    if left_out:
        _rebind_sizes(graph, inputs, signature)
        for node in (node for node in inputs if not node.users):
            notes.append(describe_dropped_input(node.target))
            graph.erase_node(node)
    exported = torch.fx.GraphModule(unlifted, graph, type(request.module).__name__)
    return _to_captured_graph(exported, tuple(notes))


def _drop_losses(graph: torch.fx.Graph, call: Call) -> None:
    """Take the outputs that are losses out of an exported graph, and what only they need."""
    if not call.losses:
        return
    output = graph.output_node()
    leaves = [leaf for leaf in pytree.tree_leaves(output.args) if isinstance(leaf, torch.fx.Node)]
    outputs = call.select_outputs(leaves)
    output.args = (outputs[0] if len(outputs) == 1 else outputs,)
    graph.eliminate_dead_code()


def _name_inputs(graph: torch.fx.Graph, call: Call) -> list[torch.fx.Node]:
    """Name the placeholders of tensors as the call does, and erase those of fixed values."""
    placeholders = graph.find_nodes(op="placeholder")
    inputs = []
    names = dict(zip(call.indices, call.names, strict=True))
    # Where fx has to rename an input it does so in the input's place, which has to be the front.
    front = next(node for node in graph.nodes if node.op != "placeholder")
    for index, node in enumerate(placeholders):
        front.prepend(node)
        if index in names:
            node.target = names[index]
            inputs.append(node)
        elif node.users:
            raise TypeError(f"the argument {node.name} is no tensor, and not fixed")
        else:
            graph.erase_node(node)
    return inputs


def _rebind_sizes(
    graph: torch.fx.Graph, inputs: list[torch.fx.Node], signature: ModelSignature
) -> None:
    """Take dynamic sizes that were read off an input without another use from one that has some.

    Export reads a dimension's size off the input that it likes, which may be the label.
    """
    reads = [
        node for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
        if node.args[0] in inputs
    ]  # fmt: skip
    used_inputs = [node for node in inputs if set(node.users) - set(reads)]
    sources = {
        axis: (node, position)
        for node, spec in zip(inputs, signature.inputs, strict=True)
        for position, axis in enumerate(spec.shape)
        if isinstance(axis, str) and node in used_inputs
    }
    for read in reads:
        source, position = read.args
        if source not in used_inputs:
            axis = signature.inputs[inputs.index(source)].shape[position]
            read.args = sources.get(axis, read.args)


def _to_captured_graph(module: torch.fx.GraphModule, notes: tuple[str, ...]) -> CapturedGraph:
    # to_folder writes only persistent buffers. What is shared with the original is put back there.
    for part in module.modules():
        part._non_persistent_buffers_set.clear()
    inputs = tuple(str(node.target) for node in module.graph.find_nodes(op="placeholder"))
    return CapturedGraph(module, inputs, notes)


# `torch.fx` keeps the layers, which is what people read and what the first level of passes knows.
# Of the two ways of export each can do what the other can't; the one that runs the forward gives
# the forward's own names.
CAPTURE_METHODS = (
    CaptureMethod("torch.fx", trace),
    CaptureMethod("torch.export", partial(export, strict=False)),
    CaptureMethod("torch.export strict", partial(export, strict=True)),
)
