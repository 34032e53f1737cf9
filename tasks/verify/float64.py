"""Run a graph in float64, so that what is left of an error is the program's and not its precision.

What a model rounds on purpose, it rounds in float64, too: where its graph casts a value to a
narrower type (`half()`, `to(bfloat16)`), the value is rounded to that type and goes on in float64.
Only the precision that it merely happens to run in is dropped.

`torch._dynamo.debug_utils.cast_to_fp64` converts a model for good; this converts value by value
while the graph runs, which needs no second copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

_LOW = (torch.float32, torch.float16, torch.bfloat16)
# Methods that name a precision rather than take it as an argument.
_PRECISION_METHODS = {"float", "half", "bfloat16"}
# What a cast is called in graphs of torch's functions, of its methods and of ATen operators.
_CASTS = {*_PRECISION_METHODS, "to", "type", "type_as", "_to_copy", "convert_element_type"}
_BITS = {torch.float64: 64, torch.float32: 32, torch.float16: 16, torch.bfloat16: 16}


def _raise_precision(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.double()
    if isinstance(value, torch.dtype) and value in _LOW:
        return torch.float64
    return value


def _to_float32(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
        return value.float()
    return value


def _copy_raised(tensor: torch.Tensor) -> object:
    raised = _raise_precision(tensor)
    return tensor.clone() if raised is tensor else raised


class Float64Interpreter(torch.fx.Interpreter):
    """Interpret a graph module with every floating-point value in float64.

    Weights are converted as they are used, dtype arguments below float64 are replaced, and what an
    operator still makes in a lower precision is converted. The `casts`, by node name, round to the
    type that stands there. `bytes_made` adds up the bytes of all intermediate results, which shows
    what a larger input would take.
    """

    def __init__(
        self, module: torch.nn.Module, casts: Mapping[str, torch.dtype] | None = None
    ) -> None:
        """Prepare to interpret `module`; its own weights are not changed."""
        super().__init__(module)
        self.bytes_made = 0
        self._casts = casts or {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        """Return the node's value, in float64 where it is floating-point."""
        value = pytree.tree_map(_raise_precision, super().run_node(n))
        if n.name in self._casts:
            value = value.to(self._casts[n.name]).double()
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and n.op.startswith("call_"):
                self.bytes_made += leaf.numel() * leaf.element_size()
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call the function with dtype arguments raised; one of int8 as it is, on float32."""
        if str(target).startswith("handoff.int8_"):
            args, kwargs = pytree.tree_map(_to_float32, (args, kwargs))
            return super().call_function(target, args, kwargs)
        args, kwargs = pytree.tree_map(_raise_precision, (args, kwargs))
        if "fake_quantize" in getattr(target, "__name__", ""):
            # What it rounds may be float64, its scale and zero point may not.
            rest, kwargs = pytree.tree_map(_to_float32, (args[1:], kwargs))
            args = (*args[:1], *rest)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call the method with dtype arguments raised, and precision methods as `double`."""
        args, kwargs = pytree.tree_map(_raise_precision, (args, kwargs))
        name = "double" if target in _PRECISION_METHODS else target
        return super().call_method(name, args, kwargs)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call the submodule with its state in float64."""
        submodule = self.fetch_attr(target)
        state = {**dict(submodule.named_parameters()), **dict(submodule.named_buffers())}
        raised = pytree.tree_map(_raise_precision, state)
        return torch.func.functional_call(submodule, raised, args, kwargs)


def run_in_float64(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    casts: Mapping[str, torch.dtype] | None = None,
) -> tuple[tuple[torch.Tensor, ...], int]:
    """Return the outputs in float64, flattened, and the bytes of all results on the way.

    Inputs and outputs may be of any shapes; what isn't floating-point keeps its dtype. `module` may
    also be an exported program's graph module, called with `graph_arguments`. The inputs are left
    as they are, even by a model that works on them in place. `casts` are the module's
    `narrowing_casts`, which are found out again where they aren't given.
    """
    interpreter = Float64Interpreter(
        module, narrowing_casts(module, inputs) if casts is None else casts
    )
    with torch.no_grad():
        result = interpreter.run(*[_copy_raised(tensor) for tensor in inputs])
    return flatten_tensors(result), interpreter.bytes_made


class _DtypeRecorder(torch.fx.Interpreter):
    """Notes the dtype of each node's value, in the module's own precision."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.dtypes: dict[torch.fx.Node, torch.dtype] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.dtypes[n] = value.dtype
        return value


def narrowing_casts(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> Mapping[str, torch.dtype]:
    """Return the nodes that cast a value to a narrower type on purpose, by name, with that type.

    Which type a value has is seen where the module runs on `inputs` of its own shapes and dtypes,
    once, if it has casts at all.
    """
    casts = [node for node in module.graph.nodes if _is_cast(node)]
    narrowing: dict[str, torch.dtype] = {}
    if casts:
        recorder = _DtypeRecorder(module)
        with torch.no_grad():
            recorder.run(*[tensor.clone() for tensor in inputs])
        for node in casts:
            before = _BITS.get(recorder.dtypes.get(node.args[0], torch.int8), 0)
            after = recorder.dtypes.get(node)
            if after in _BITS and before > _BITS[after]:
                narrowing[node.name] = after
    return narrowing


def _is_cast(node: torch.fx.Node) -> bool:
    if not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op.startswith("call_") and str(name).partition(".")[0] in _CASTS


def copy_sharing_tensors(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy of the module that has the very tensors of the original.

    While `Float64Interpreter` calls a submodule, that has float64 weights for whoever calls it.
    """
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def graph_arguments(program: ExportedProgram, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the arguments of the program's own graph: its lifted state, then the inputs.

    They are the very tensors, of any shapes and dtypes.
    """
    remaining = iter(inputs)
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            values.append(next(remaining))
        elif spec.target in program.state_dict:
            values.append(program.state_dict[str(spec.target)])
        else:
            values.append(program.constants[str(spec.target)])
    return values


def flatten_tensors(result: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a model's result (a tensor, tuple, list or dict), in order.

    They may be of any shapes and dtypes.
    """
    return tuple(v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor))
