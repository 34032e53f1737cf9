"""Run a graph in float64, so that what is left of an error is the program's and not its precision.

`torch._dynamo.debug_utils.cast_to_fp64` converts a model for good; this converts value by value
while the graph runs, which needs no second copy of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

_LOW = (torch.float32, torch.float16, torch.bfloat16)
# Methods that name a precision rather than take it as an argument.
_PRECISION_METHODS = {"float", "half", "bfloat16"}


def _raise_precision(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.double()
    if isinstance(value, torch.dtype) and value in _LOW:
        return torch.float64
    return value


def _own_copy(tensor: torch.Tensor) -> object:
    raised = _raise_precision(tensor)
    return tensor.clone() if raised is tensor else raised


class Float64Interpreter(torch.fx.Interpreter):
    """Interpret a graph module with every floating-point value in float64.

    Weights are converted as they are used, dtype arguments below float64 are replaced, and what an
    operator still makes in a lower precision is converted. `bytes_made` adds up the bytes of all
    intermediate results, which tells what a larger input would take.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Prepare to interpret `module`; its own weights are not changed."""
        super().__init__(module)
        self.bytes_made = 0

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        """Return the node's value, in float64 where it is floating-point."""
        value = pytree.tree_map(_raise_precision, super().run_node(n))
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and n.op.startswith("call_"):
                self.bytes_made += leaf.numel() * leaf.element_size()
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Call the function with dtype arguments raised."""
        args, kwargs = pytree.tree_map(_raise_precision, (args, kwargs))
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
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], int]:
    """Return the outputs in float64, flattened, and the bytes of all results on the way.

    `module` may also be an exported program's graph module, called with `lifted_inputs`. The inputs
    are left as they are, even by a model that works on them in place.
    """
    interpreter = Float64Interpreter(module)
    with torch.no_grad():
        result = interpreter.run(*[_own_copy(tensor) for tensor in inputs])
    return flat_tensors(result), interpreter.bytes_made


def lifted_inputs(program: ExportedProgram, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the arguments of the program's own graph: its lifted state, then the inputs."""
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


def flat_tensors(result: object) -> tuple[torch.Tensor, ...]:
    """Return the tensors in a model's result (a tensor, tuple, list or dict), in order."""
    return tuple(v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor))
