"""What the graph itself says: inputs without a use, outputs without an input, odd constants."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence

import torch
import torch.fx
from torch import nn
from torch.utils import _pytree as pytree

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.deliver.capture.lines import node_location
from handoff.tasks.deliver.capture.run_failures import BAGS_REMEDY

# torch.fx's name for a tensor that is no parameter, no buffer and no attribute of the model: one
# that forward made, or found outside of the model.
_TRACED_CONSTANT = re.compile(r"(?:.*\.)?_tensor_constant[0-9]+")
_READING_OPERATORS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_NEUTRAL_NUMBERS = {
    operator.mul: 1, operator.truediv: 1, operator.pow: 1, torch.mul: 1, torch.div: 1,
    operator.add: 0, operator.sub: 0, torch.add: 0, torch.sub: 0,
}  # fmt: skip

_BAG_OPERATORS = (
    torch.nn.functional.embedding_bag, torch.ops.aten.embedding_bag.default,
    torch.ops.aten.embedding_bag.padding_idx, torch.ops.aten._embedding_bag.default,
    torch.ops.aten._embedding_bag_forward_only.default,
)  # fmt: skip

_MAX_VALUES = 4096
_MIN_VALUES = 8


def unused_inputs(module: torch.fx.GraphModule) -> Iterator[Finding]:
    """Find the inputs that nothing uses."""
    for node in module.graph.find_nodes(op="placeholder"):
        if not node.users:
            yield Finding(
                "unused-input",
                "limit",
                f"the input {node.target} is used by nothing",
                "Drop it from the model, or check that it was not lost in tracing",
                node_location(node),
            )


def constant_outputs(module: torch.fx.GraphModule) -> Iterator[Finding]:
    """Find the outputs that no input leads to; without any other, the model is not traced."""
    reached = _find_dependents(module.graph)
    leaves = pytree.tree_leaves(module.graph.output_node().args)
    outputs = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    constant = [index for index, node in enumerate(outputs) if node not in reached]
    if not constant and outputs:
        return
    is_every = len(constant) == len(outputs)
    yield Finding(
        "constant-output",
        "unsound" if is_every else "limit",
        f"no input leads to {'any output' if is_every else f'output {constant[0]}'}",
        "Check that the forward uses its inputs: what it computed without them is fixed in the "
        "graph",
        node_location(outputs[constant[0]]) if constant else "module.py",
    )


def _find_dependents(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the inputs and all that is computed from them."""
    reached: set[torch.fx.Node] = set(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        if reached.intersection(node.all_input_nodes):
            reached.add(node)
    return reached


def burnt_in_constants(module: torch.fx.GraphModule, *, proven: bool) -> Iterator[Finding]:
    """Find tensors that forward made while it was traced, and that are the same ever since.

    `proven` says that golden outputs of the original model, for several inputs, came out right.
    """
    for node in module.graph.find_nodes(op="get_attr"):
        if not _TRACED_CONSTANT.fullmatch(str(node.target)):
            continue
        value = _get_tensor(module, str(node.target))
        label = f"{node.target} ({str(value.dtype).removeprefix('torch.')} {list(value.shape)})"
        if looks_random(value) and not proven:
            yield Finding(
                "burnt-in-random-constant",
                "unsound",
                f"{label} was made while forward was traced, is no parameter or buffer, and looks "
                "drawn at random: each call of the original would draw again",
                "Take the random operator out of the forward, or register the tensor as a buffer",
                node_location(node),
            )
        elif value.numel() > 1 and not proven:
            yield Finding(
                "burnt-in-constant",
                "note",
                f"{label} was made while forward was traced, and is fixed since",
                "Nothing needs to be done if it doesn't depend on the call",
                node_location(node),
            )


def fixed_numbers(module: torch.fx.GraphModule, *, proven: bool) -> Iterator[Finding]:
    """Find arithmetic with a number that changes nothing: a Python value of the traced call.

    A factor of 1 is what a call counter, a step or a schedule held at the first call.
    """
    if proven:
        return
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        neutral = _NEUTRAL_NUMBERS.get(node.target)
        numbers = [arg for arg in node.args if type(arg) in (int, float)]
        if neutral is not None and numbers == [neutral] and isinstance(node.args[0], torch.fx.Node):
            yield Finding(
                "fixed-number",
                "limit",
                f"{node.name} computes with the number {numbers[0]}, which changes nothing: a "
                "counter or a setting that was read when forward was traced is fixed since",
                "Make it an input of forward, or take it out if it is always that number",
                node_location(node),
            )


def assumed_modes(module: torch.fx.GraphModule, *, proven: bool) -> Iterator[Finding]:
    """Find layers of the top level that behave otherwise in training: their mode isn't written."""
    if proven:
        return
    for name, child in module.named_children():
        if not isinstance(child, nn.modules.batchnorm._BatchNorm):
            continue
        fresh = child.num_batches_tracked is not None and int(child.num_batches_tracked) == 0
        statistics = ". It has never seen a batch: its statistics are the initial ones"
        yield Finding(
            "assumed-evaluation-mode",
            "limit",
            f"to_folder doesn't write whether {name} ({type(child).__name__}) was in evaluation "
            f"mode, which is assumed{statistics if fresh else ''}",
            "Deliver with 'handoff deliver', which makes sure of it and stores golden outputs",
            "module.py",
        )


def float_ids(module: torch.fx.GraphModule, inputs: Sequence[TensorSpec]) -> Iterator[Finding]:
    """Find floating-point inputs that the model takes for whole numbers."""
    casts = {"long": "int64", "int": "int32"}
    floating = {spec.name for spec in inputs if spec.dtype.startswith(("float", "bfloat"))}
    for node in (node for node in module.graph.nodes if node.op == "call_method"):
        if node.target not in casts or not isinstance(node.args[0], torch.fx.Node):
            continue
        source = _first_source(node.args[0])
        if source is not None and source.op == "placeholder" and source.target in floating:
            yield Finding(
                "ids-as-floats",
                "limit",
                f"the input {source.target} is turned into {casts[str(node.target)]}: float32 "
                "holds whole numbers only up to 16777216",
                "Take ids as int64 inputs of their own",
                node_location(node),
            )
            return


def value_reads(module: torch.fx.GraphModule) -> Iterator[Finding]:
    """Find where the graph turns a tensor that depends on the inputs into a Python number."""
    reached = _find_dependents(module.graph)
    reads = [
        node for node in module.graph.nodes
        if node in reached
        and ((node.op == "call_method" and node.target in ("item", "tolist"))
             or (node.op == "call_function" and node.target in _READING_OPERATORS))
    ]  # fmt: skip
    if reads:
        more = f", and {len(reads) - 1} more do" if len(reads) > 1 else ""
        yield Finding(
            "value-read",
            "limit",
            f"{reads[0].name} reads a value out of a tensor{more}: what is computed with it can't "
            "be fused, a GPU is waited for, and a compiler may fix it to one value",
            "Keep it a tensor: x.max() broadcasts as x.max().item() does",
            node_location(reads[0]),
        )


def bag_offsets(module: torch.fx.GraphModule) -> Iterator[Finding]:
    """Find inputs that say where the bags of an EmbeddingBag begin."""
    for node in module.graph.nodes:
        offsets = _offsets_of(module, node)
        source = _first_source(offsets) if offsets is not None else None
        if source is not None and source.op == "placeholder":
            yield Finding(
                "bag-offsets",
                "unsound",
                f"{source.target} says where the bags of {node.name} begin: it has to begin with 0 "
                "and to rise, which no contract can declare, and inputs that are drawn to compare "
                "a package on don't",
                BAGS_REMEDY,
                node_location(node),
            )


def _offsets_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the offsets of a call of an EmbeddingBag; None for any other, and without them."""
    is_bag = node.op == "call_module" and isinstance(
        module.get_submodule(str(node.target)), nn.EmbeddingBag
    )
    position = 1 if is_bag else 2
    if not is_bag and node.target not in _BAG_OPERATORS:
        return None
    offsets = node.kwargs.get("offsets", node.args[position] if len(node.args) > position else None)
    return offsets if isinstance(offsets, torch.fx.Node) else None


def _first_source(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the input that `node` is a part of: through indexing alone."""
    while node.op == "call_function" and node.target is operator.getitem:
        first = node.args[0]
        if not isinstance(first, torch.fx.Node):
            return None
        node = first
    return node


def _get_tensor(module: torch.fx.GraphModule, path: str) -> torch.Tensor:
    prefix, _, name = path.rpartition(".")
    owner = module.get_submodule(prefix)
    value = getattr(owner, name)
    assert isinstance(value, torch.Tensor)
    return value


def looks_random(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor look drawn at random.

    It may be of any shape; complex numbers and truths never do, nor does what isn't finite. Drawn
    values hardly repeat, have no short decimal form, and turn up and down: of independent values
    two thirds of the inner ones are turning points (Bienaymé's test), of a table that was computed
    few, of an alternating one nearly all. One value alone says nothing.
    """
    if tensor.numel() < 2 or tensor.is_complex() or tensor.dtype is torch.bool:
        return False
    values = tensor.detach().reshape(-1)[:_MAX_VALUES].double()
    if not bool(values.isfinite().all()):
        return False
    if not tensor.is_floating_point():
        return values.numel() >= _MIN_VALUES and _turns_like_noise(values)
    distinct = values.unique().numel() / values.numel()
    # Four digits write any half-precision number.
    precise = tensor.dtype.itemsize >= 4
    short = [v for v in values.tolist() if precise and _is_short(v, tensor.dtype)]
    if distinct < (0.98 if precise else 0.9) or len(short) > 0.1 * values.numel():
        return False
    return _turns_like_noise(values)


def _is_short(value: float, dtype: torch.dtype) -> bool:
    """Return whether four digits write the value: what a person typed, or a simple fraction."""
    rounded = torch.tensor(float(f"{value:.4g}"), dtype=torch.float64).to(dtype).double().item()
    return rounded == value


def _turns_like_noise(values: torch.Tensor) -> bool:
    steps = values.diff()
    if values.numel() < _MIN_VALUES:
        return (bool((steps > 0).any()) and bool((steps < 0).any())) or values.numel() == 2
    turning = ((steps[1:] * steps[:-1]) < 0).double().mean().item()
    return 0.4 <= turning <= 0.92
