"""Capture: a graph module and its signature become an exported program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

import handoff.tasks.optimize.kernels  # noqa: F401 - it registers the fake kernels that some operators lack
from handoff.artifacts.delivery.contract import NO_STRUCTURE, Structure
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import DeliveryUnsound, EnvironmentLacking
from handoff.tasks.deliver.capture.failures import note_size_decision, obstacle_of
from handoff.tasks.deliver.capture.lines import Line, format_line, node_location, quote_line
from handoff.tasks.deliver.multiples import format_dimension
from handoff.tasks.optimize.ranges import to_dimension
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs

# Sizes to trace with: torch.export specialises on 0 and 1, and two dimensions of the same size
# could be taken for one.
_FIRST_TRACED_SIZE = 6


def capture(
    module: torch.nn.Module,
    signature: ModelSignature,
    *,
    rows: Sequence[torch.Tensor] | None = None,
    strict: bool = False,
) -> ExportedProgram:
    """Return the exported program of `module`, which takes the signature's tensors one by one.

    It is traced with random inputs, or with ones drawn from the example's `rows`, which are of the
    signature's shapes and dtypes. `strict` captures by Dynamo's reading of the bytecode instead of
    by running the forward.

    Raises `DeliveryUnsound` when the module can't be captured for the whole of a declared range,
    and `EnvironmentLacking` when torch can't read its own files.
    """
    inputs = inputs_to_trace(signature, rows)
    try:
        return export(module, inputs, {}, dynamic_shapes(signature), signature, strict=strict)
    except DeliveryUnsound as refused:
        # A delivered graph opens no files.
        if isinstance(unread := refused.__cause__, OSError):
            raise EnvironmentLacking(
                "torch can't read what it needs to capture a model",
                expected="an environment whose packages lie in it", got=str(unread),
                remedy="Install torch into this environment itself: links that lead out of it "
                "aren't followed by processes that are confined",
            ) from unread  # fmt: skip
        raise


def inputs_to_trace(
    signature: ModelSignature, rows: Sequence[torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """Return inputs whose sizes are all different and no special case.

    They, and `rows`, are of the signature's shapes and dtypes: dynamic sizes are 6, 7 and so on,
    where their limits let them be.
    """
    sizes = {
        name: limits.nearest(_FIRST_TRACED_SIZE + i)
        for i, (name, limits) in enumerate(signature.dimensions.items())
    }
    return draw_inputs(signature, CaseSpec("capture", sizes, 0), rows)


def dynamic_shapes(signature: ModelSignature) -> tuple[dict[int, Dim], ...]:
    """Return for each input which axes are dynamic, as `torch.export` takes it."""
    dims = {
        name: _dim(name, limits)
        for name, limits in signature.dimensions.items()
        if limits.min < limits.max
    }
    return tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if size in dims}
        for spec in signature.inputs
    )


def _dim(name: str, limits: Dimension) -> Dim:
    """Return the dimension as torch.export has it: as many steps, where it has steps."""
    step = limits.multiple_of
    if step == 1:
        return Dim(name, min=limits.min, max=limits.max)
    # torch wants an identifier, and nobody names a dimension so.
    steps = Dim(f"_{name}_over_{step}_", min=limits.min // step, max=limits.max // step)
    derived: Dim = step * steps
    return derived


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,  # noqa: ANN401 - nested as the arguments are
    signature: ModelSignature,
    *,
    strict: bool,
) -> ExportedProgram:
    """Return `module` exported with these arguments; raise as `capture` does."""

    def run_export(*, strict: bool) -> ExportedProgram:
        with torch.no_grad():
            return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)

    try:
        return run_export(strict=strict)
    except Exception as error:
        note_size_decision(error, partial(run_export, strict=False))
        raise _capture_error(module, signature, error) from error


def _capture_error(
    module: torch.nn.Module, signature: ModelSignature, error: Exception
) -> DeliveryUnsound:
    obstacle = obstacle_of(error)
    nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
    locations = [node_location(node) for node in nodes if node.name == obstacle.node]
    locations += [format_line(obstacle.line)] if obstacle.line else []
    recurrent = _first_recurrent_layer(module)
    where = next(iter(locations), recurrent)
    if not obstacle.what:
        guards = _describe_guards(error)
        declared = [f"{name} {d}" for name, d in signature.dimensions.items()]
        default = _COMPUTED_SIZES if guards else _FIXED_SIZE
        return DeliveryUnsound(
            "the model can't be captured for the sizes that the delivery declares",
            expected=f"a graph that holds for {', '.join(declared) or 'the declared shapes'}",
            got=guards
            or _describe_specialization(error, obstacle.line)
            or summarize_export_error(error),
            remedy=_STEPS if recurrent else _suggest_multiples(error, signature) or default,
            where=where,
        )
    return DeliveryUnsound(
        f"the model can't be captured: {obstacle.what}",
        expected="a forward that torch.export can capture",
        got=obstacle.got,
        remedy=obstacle.remedy,
        where=where,
    )


_FIXED_SIZE = (
    "Take the fixed size out of forward (a number, int() of a size, a loop over a tensor's rows), "
    "or declare that dimension as fixed"
)
_STEPS = (
    "torch.export unrolls recurrent layers (RNN, GRU, LSTM) over their steps: declare that "
    "dimension as fixed, and pad what is served to it"
)
_COMPUTED_SIZES = (
    "Pad or crop the inputs before the model is called, or write forward without computed sizes "
    "(torch.nn.functional.interpolate to the other tensor's size); or declare larger smallest "
    "sizes, since torch.export can't follow one that becomes 1 inside; or declare the dimensions "
    "as fixed and deliver once for each size"
)


def _first_recurrent_layer(module: torch.nn.Module) -> str:
    """Return the place of a graph's first recurrent layer; '' where it has none."""
    if not isinstance(module, torch.fx.GraphModule):
        return ""
    layers = {name for name, part in module.named_modules() if isinstance(part, torch.nn.RNNBase)}
    nodes = (node for node in module.graph.nodes if node.op == "call_module")
    return next((node_location(node) for node in nodes if node.target in layers), "")


def _describe_guards(error: Exception) -> str:
    """Return which dimensions torch makes a condition on that it can't show to hold; else ''."""
    found = re.findall(r"Not all values of (\S+) = .*? satisfy the generated guard", str(error))
    names = " and ".join(dict.fromkeys(found))
    return (
        f"what forward computes from the sizes {names} (a padding, a crop, a reshape) gives "
        "torch.export conditions that it can't show to hold for all of them"
        if names else ""
    )  # fmt: skip


def _suggest_multiples(error: Exception, signature: ModelSignature) -> str:
    """Return what to declare where torch suggests multiples (`height = 16*_height`); else ''."""
    declared = []
    for name, number in re.findall(r"^\s*(\w+) = (\d+)\*_\w+\s*$", str(error), re.MULTILINE):
        limits = signature.dimensions.get(name)
        multiples = limits.restrict_to_multiples(int(number)) if limits else None
        if multiples is not None:
            declared.append(f"'{name}': {format_dimension(multiples)}")
    if not declared:
        return ""
    return (
        f"Declare the sizes that forward is made for, dimensions={{{', '.join(declared)}}}: "
        "multiples, to which what is served is padded"
    )


def _describe_specialization(error: Exception, line: Line | None) -> str:
    """Return which dimensions a line fixes to one size, where that is what torch stops at.

    It says so at length, and names the size that it traced with, which is nobody's.
    """
    found = re.findall(r"You marked (\S+) as dynamic but your code specialized it", str(error))
    names = " and ".join(dict.fromkeys(found))
    return f"{quote_line(line)}it works for one size of {names} only" if names else ""


_ADVICE = re.compile(
    r'\s*For more information, run with TORCH_LOGS="[^"]*"\.?|\s*If you\'re using (?:mark_dynamic|'
    r"Dim\.DYNAMIC),[^\n]*|\s*Suggested fixes:.*",
    re.DOTALL,
)


def summarize_export_error(error: Exception) -> str:
    """Return an error of torch's as one line, without its advice to those who call export."""
    text = _ADVICE.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:400]}"


def describe_outputs(
    program: ExportedProgram, signature: ModelSignature, structure: Structure = NO_STRUCTURE
) -> tuple[tuple[TensorSpec, ...], dict[str, Dimension]]:
    """Return the program's output specs, and ranges for sizes that are computed from the inputs'.

    A size that is itself a dynamic dimension keeps its name; one that is computed from them (twice
    the length, say) gets a name and the range that the computation can give. Outputs are called
    `output0` and so on where `structure` doesn't name each of them.
    """
    names = _symbol_names(program, signature)
    computed: dict[str, Dimension] = {}
    specs = []
    # Not the output node's `all_input_nodes`, which name a tensor once that is given twice.
    leaves = pytree.tree_leaves(program.graph.output_node().args)
    outputs = [n.meta["val"] for n in leaves if isinstance(n, torch.fx.Node)]
    values = [value for value in outputs if isinstance(value, torch.Tensor)]
    for index, value in enumerate(values):
        shape: list[int | str] = []
        for axis, size in enumerate(value.shape):
            if isinstance(size, int):
                shape.append(size)
            elif (name := names.get(str(size))) is not None:
                shape.append(name)
            else:
                name = f"output{index}_axis{axis}"
                bounds = size.node.shape_env.bound_sympy(size.node.expr)
                computed[name] = to_dimension(bounds)
                shape.append(name)
        dtype = str(value.dtype).removeprefix("torch.")
        specs.append(TensorSpec(structure.names_of(len(values))[index], dtype, tuple(shape)))
    return tuple(specs), computed


def _symbol_names(program: ExportedProgram, signature: ModelSignature) -> dict[str, str]:
    names: dict[str, str] = {}
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec, name in zip(signature.inputs, program.graph_signature.user_inputs, strict=True):
        value = nodes[str(name)].meta["val"]
        for axis, size in zip(spec.shape, value.shape, strict=True):
            if isinstance(axis, str):
                names.setdefault(str(size), axis)
    return names
