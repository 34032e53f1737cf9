"""Which kernel is wrong: the first that writes something else than the graph computes there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from handoff.tasks.compile.cross.python_program import PythonProgram
from handoff.tasks.verify.elements import root_mean_square
from handoff.tasks.verify.interpret.external import on_cpu
from handoff.tasks.verify.interpret.kernel import KernelFailedError
from handoff.tasks.verify.interpret.run import Interpreted, Tensors

# How far a buffer may lie from the graph's value, relative to that, before it counts as wrong:
# far more than rounding, far less than what makes an output wrong.
_APART = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def find_wrong(program: PythonProgram, interpreted: Interpreted, inputs: Tensors) -> str:
    """Return which kernel first writes what the graph doesn't compute there, by its lines.

    '' where each buffer that is known in the graph holds what it should. `inputs` are those of a
    case whose outputs are wrong.
    """
    values = _Values(program)
    with torch.no_grad():
        values.run(*inputs)
    found: list[str] = []

    def watch(buffer: str, value: torch.Tensor, by: str) -> None:
        node = program.nodes.get(buffer, "")
        expected = values.seen.get(node)
        if found or expected is None or expected.numel() != value.numel():
            return
        apart = _apart(value.reshape(expected.shape), expected)
        if not apart <= _APART.get(expected.dtype, 0.0):
            far = (
                f"by {apart:.2g} of its size" if math.isfinite(apart) else "where one isn't finite"
            )
            found.append(f"{by}: what it writes to {buffer} isn't the graph's {node}, {far}")

    interpreted.watch = watch
    try:
        interpreted(inputs)
    except KernelFailedError as error:
        found.append(str(error))
    finally:
        interpreted.watch = None
    return found[0] if found else ""


def _apart(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return how far two tensors of one shape lie apart, relative to the second."""
    one, other = got.double(), want.double()
    both = torch.isfinite(one) & torch.isfinite(other)
    alike = both | (one == other) | (torch.isnan(one) & torch.isnan(other))
    if not bool(alike.all()):
        return float("inf")
    size = root_mean_square(other[both])
    error = root_mean_square((one - other)[both])
    return error / size if size else error


class _Values(torch.fx.Interpreter):
    """Runs the graph on the CPU, and keeps what each node gives."""

    def __init__(self, program: PythonProgram) -> None:
        super().__init__(program.graph)
        self.seen: dict[str, torch.Tensor] = {}
        self._attributes: Mapping[str, torch.Tensor] = program.attributes

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever a node gives
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            # A copy, because a later node may change it in place.
            self.seen[n.name] = value.clone()
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - fx's
        return self._attributes[str(target)]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - fx's
        function = on_cpu(target) if isinstance(target, OpOverload) else target
        return super().call_function(function, args, kwargs)
