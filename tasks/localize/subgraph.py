"""Parts of an exported program as modules of their own, with the values that they got there."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import bound_sympy

from handoff.tasks.optimize.passes.state import lifted_tensors
from handoff.tasks.optimize.ranges import to_dimension
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.float64 import flatten_tensors, graph_arguments, run_in_float64
from handoff.tasks.verify.loading import Tensors


class _RecordingInterpreter(torch.fx.Interpreter):
    """Keeps each node's value, as it was when the node had run."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        copied = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, value)
        self.values[n.name] = copied
        return value


def record(program: ExportedProgram, inputs: Tensors) -> dict[str, Any]:
    """Return the value of every node, computed by eager kernels in the program's precisions.

    Values stand by node name, tensors among them in the shapes and dtypes of this run; `inputs` are
    of the signature's.
    """
    interpreter = _RecordingInterpreter(program.graph_module)
    with torch.no_grad():
        interpreter.run(*[tensor.clone() for tensor in graph_arguments(program, inputs)])
    return interpreter.values


@dataclass(frozen=True)
class Subgraph:
    """A part of a program that can be run, exported and compiled: `[*inputs] -> outputs`.

    `nodes` are the program's nodes in it, `inputs` what they got, and `outputs` the names of the
    nodes whose values it returns, all in the program's shapes and dtypes. `dynamic` holds for each
    input the axes that the program leaves open, and the largest size of each. Weights are buffers
    of `module`.
    """

    module: torch.fx.GraphModule
    nodes: tuple[Node, ...]
    inputs: Tensors
    outputs: tuple[str, ...]
    dynamic: tuple[dict[int, int], ...]

    def export(self) -> ExportedProgram:
        """Return the part as an exported program."""
        shapes = tuple(
            {axis: Dim.AUTO(max=high) for axis, high in axes.items()} for axes in self.dynamic
        )
        with torch.no_grad():
            return torch.export.export(self.module, self.inputs, dynamic_shapes=shapes)

    def run(self) -> tuple[Tensors, Tensors]:
        """Return the outputs in the program's precisions, and those in float64, both flattened."""
        with torch.no_grad():
            outputs = flatten_tensors(self.module(*[tensor.clone() for tensor in self.inputs]))
        return outputs, run_in_float64(self.module, self.inputs)[0]

    def conditioning(self, eager: Tensors) -> Conditioning:
        """Return what measures how far rounding moves the outputs, which are `eager`.

        They are flattened, in the program's shapes and dtypes.
        """
        return Conditioning(self.module, self.inputs, eager, " ".join(self.outputs))


def computing_nodes(program: ExportedProgram) -> tuple[Node, ...]:
    """Return the nodes that compute a value which is used, or write one, in topological order."""
    return tuple(
        n for n in program.graph.nodes if n.op == "call_function" and (n.users or writes(n))
    )


def writes(node: Node) -> bool:
    """Return whether the node changes a tensor that it is given."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def is_tensor(node: Node) -> bool:
    """Return whether the node's value is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def cut(
    program: ExportedProgram,
    values: Mapping[str, Any],
    nodes: Collection[Node],
    taps: Collection[Node] = (),
) -> Subgraph:
    """Return the part of the program that `nodes` make up, returning also the values of `taps`.

    It takes what the rest of the program made as inputs (`values`, by `record`), and returns what
    the rest uses. A node of several results comes with those that pick one of them.
    """
    return _Cutter(program, values, _with_getitems(nodes), taps).cut()


def _with_getitems(nodes: Collection[Node]) -> set[Node]:
    """Return the nodes with the makers of results of several parts, and all who pick a part."""
    closed: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in closed:
            continue
        closed.add(node)
        if node.target is operator.getitem:
            waiting += node.all_input_nodes
        elif isinstance(node.meta.get("val"), (tuple, list)):
            waiting += [user for user in node.users if user.target is operator.getitem]
    return closed


class _Cutter:
    """Builds the graph of one part."""

    def __init__(
        self,
        program: ExportedProgram,
        values: Mapping[str, Any],
        chosen: set[Node],
        taps: Collection[Node],
    ) -> None:
        self._nodes = tuple(node for node in program.graph.nodes if node in chosen)
        self._chosen, self._values, self._taps = chosen, values, taps
        self._program, self._state = program, lifted_tensors(program)
        self._root = torch.nn.Module()
        self._graph = torch.fx.Graph()
        self._copies: dict[Node, Any] = {}

    def cut(self) -> Subgraph:
        outside = dict.fromkeys(
            source for node in self._nodes for source in node.all_input_nodes
            if source not in self._chosen
        )  # fmt: skip
        inputs = [node for node in outside if node.name not in self._state and is_tensor(node)]
        for node in inputs:
            self._copies[node] = self._graph.placeholder(node.name)
        for node in outside:
            if node not in self._copies:
                self._copies[node] = self._constant(node, inputs)
        for node in self._nodes:
            self._copies[node] = self._graph.node_copy(node, lambda source: self._copies[source])
        returned = self._returned_nodes()
        self._graph.output(tuple(self._copies[node] for node in returned))
        return Subgraph(
            torch.fx.GraphModule(self._root, self._graph, "Subgraph").eval(),
            self._nodes,
            tuple(self._values[node.name] for node in inputs),
            tuple(node.name for node in returned),
            tuple(self._open_axes(node) for node in inputs),
        )

    def _returned_nodes(self) -> Sequence[Node]:
        """Return the nodes whose tensors the rest of the program uses, and those to be seen."""
        return [
            node for node in self._nodes
            if is_tensor(node) and (
                node in self._taps or not (node.users or writes(node))
                or any(user not in self._chosen for user in node.users)
            )
        ]  # fmt: skip

    def _constant(self, node: Node, inputs: Sequence[Node]) -> Any:  # noqa: ANN401 - Node or int
        """Return what stands for a weight, a size or a nested graph from outside."""
        if node.name in self._state:
            self._root.register_buffer(node.name, self._state[node.name].detach())
            return self._graph.get_attr(node.name)
        if node.op == "get_attr":
            name = str(node.target).replace(".", "_")
            setattr(self._root, name, operator.attrgetter(str(node.target))(
                self._program.graph_module
            ))  # fmt: skip
            return self._graph.get_attr(name)
        # A size: read off an input that has it, so that it stays as open as it was.
        for source in inputs:
            for axis, size in enumerate(source.meta["val"].shape):
                if isinstance(size, torch.SymInt) and str(size) == str(node.meta.get("val")):
                    read_size = torch.ops.aten.sym_size.int
                    return self._graph.call_function(read_size, (self._copies[source], axis))
        return self._values[node.name]

    def _open_axes(self, node: Node) -> dict[int, int]:
        found = {}
        sizes = zip(node.meta["val"].shape, self._values[node.name].shape, strict=True)
        for axis, (declared, size) in enumerate(sizes):
            # torch.export takes a size of one for a case of its own.
            if isinstance(declared, torch.SymInt) and size > 1:
                limits = bound_sympy(declared.node.expr, self._program.range_constraints)
                # Inductor can't compile for a size without a bound.
                found[axis] = min(to_dimension(limits).max, 1 << 31)
        return found
