"""An exported program's lifted state and its calls, as passes read and change them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
import torch.fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """Return all arguments of an operator's call by name, defaults included."""
    root = node.graph.owning_module
    assert root is not None
    normalized = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    assert normalized is not None
    return normalized.kwargs


def add_call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:  # noqa: ANN401
    """Call `target` where the graph inserts at the moment; the node says what it returns."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*torch.fx.map_arg(args, lambda one: one.meta["val"]))
    return node


def copy_metadata(new: torch.fx.Node, old: torch.fx.Node) -> None:
    """Let `new`, which takes the place of `old`, say its origin; what it returns stays its own."""
    new.meta.update({name: value for name, value in old.meta.items() if name != "val"})


# What gives the same numbers in the same order another shape.
_ATEN = torch.ops.aten
SHAPES = {
    _ATEN.flatten.using_ints, _ATEN.unsqueeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims,
    _ATEN.view.default, _ATEN.reshape.default,
}  # fmt: skip
_STATE = (InputKind.PARAMETER, InputKind.BUFFER)
_LIFTED = (*_STATE, InputKind.CONSTANT_TENSOR)


def state_name(program: ExportedProgram, node: torch.fx.Node) -> str:
    """Return the key in `program.state_dict` that the placeholder `node` stands for, or ''."""
    for spec in program.graph_signature.input_specs:
        if spec.arg.name == node.name and spec.kind in _STATE and spec.target is not None:
            return spec.target if spec.target in program.state_dict else ""
    return ""


def skip_shapes(node: torch.fx.Node) -> torch.fx.Node:
    """Return what has made a tensor's numbers, behind calls that give them another shape alone."""
    while node.target in SHAPES:
        inner = node.args[0]
        assert isinstance(inner, torch.fx.Node)
        node = inner
    return node


def is_constant(
    program: ExportedProgram, node: torch.fx.Node, writes: Container[torch.fx.Node]
) -> bool:
    """Return whether a placeholder stands for state that is never written to.

    `writes` holds what is (`purity.last_writes`). A function of our own may read it as it lies in
    memory, without gaps.
    """
    name = state_name(program, node)
    return bool(name) and node not in writes and program.state_dict[name].is_contiguous()


def lifted_tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the tensors that the program holds, by the names of their placeholders."""
    tensors: dict[str, torch.Tensor] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _LIFTED and spec.target is not None:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if isinstance(value, torch.Tensor):
                tensors[spec.arg.name] = value
    return tensors


def state_value(program: ExportedProgram, node: object, default: float = 0.0) -> torch.Tensor:
    """Return the tensor that a placeholder stands for, in float64; for None, the default."""
    if node is None:
        return torch.tensor(default, dtype=torch.float64)
    assert isinstance(node, torch.fx.Node)
    tensor: torch.Tensor = program.state_dict[state_name(program, node)]
    return tensor.detach().double()


def change_state(program: ExportedProgram, node: torch.fx.Node, value: torch.Tensor) -> None:
    """Put `value` in the place of the tensor that the placeholder `node` stands for, in its dtype.

    A new tensor is made; the one that was there isn't written to.
    """
    name = state_name(program, node)
    old = program.state_dict[name]
    new = value.to(old.dtype)
    put_state(program, name, new)


def put_state(program: ExportedProgram, name: str, new: torch.Tensor) -> None:
    """Put `new` in the place of the program's tensor `name`: a parameter where that was one."""
    is_parameter = isinstance(program.state_dict[name], torch.nn.Parameter)
    program.state_dict[name] = torch.nn.Parameter(new, requires_grad=False) if is_parameter else new


def retype_state(program: ExportedProgram, node: torch.fx.Node, dtype: torch.dtype) -> None:
    """Keep the tensor that the placeholder `node` stands for in another dtype from now on.

    Weights that are tied to it by a name of their own are not changed.
    """
    name = state_name(program, node)
    old = program.state_dict[name]
    new = old.detach().to(dtype)
    put_state(program, name, new)
    node.meta["val"] = node.meta["val"].to(dtype)


def add_buffer(program: ExportedProgram, hint: str, value: torch.Tensor) -> torch.fx.Node:
    """Add a buffer to the program's state, and return its placeholder.

    `hint` is its name, with a number behind it where that is taken.
    """
    placeholders = program.graph.find_nodes(op="placeholder")
    taken = {*program.state_dict, *program.constants, *(node.name for node in placeholders)}
    name, number = hint, 0
    while name in taken or f"b_{name}" in taken:
        number += 1
        name = f"{hint}_{number}"
    specs = program.graph_signature.input_specs
    kinds = [spec.kind for spec in specs]
    index = kinds.index(InputKind.USER_INPUT) if InputKind.USER_INPUT in kinds else len(kinds)
    # The order of the placeholders is that of the specs: the state's, then the user's.
    calls = (node for node in program.graph.nodes if node.op != "placeholder")
    behind = placeholders[index] if index < len(placeholders) else next(calls)
    with program.graph.inserting_before(behind):
        # A weight may be called by a number (`0.weight`), a placeholder may not: as torch names it.
        node: torch.fx.Node = program.graph.placeholder(f"b_{name}")
    fake = detect_fake_mode([n.meta.get("val") for n in placeholders])
    node.meta["val"] = fake.from_tensor(value, static_shapes=True) if fake else value
    spec = InputSpec(InputKind.BUFFER, TensorArgument(node.name), name, persistent=True)
    specs.insert(index, spec)
    program.state_dict[name] = value
    return node


class RepackedWeights:
    """A program's weights as functions of our own read them; layers that share one share it still.

    What the layers had is dropped by `drop_unused_state`, once none has it any more.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Begin with none."""
        self._program = program
        self._added: dict[tuple[str, str], torch.fx.Node] = {}

    def add(
        self, weight: torch.fx.Node, hint: str, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.fx.Node:
        """Return the placeholder of what `change` makes of a weight, `hint` being a name for that.

        The weight is state, or state in another shape.
        """
        state = skip_shapes(weight)
        if (state.name, hint) not in self._added:
            tensor = self._program.state_dict[state_name(self._program, state)].detach()
            changed = change(tensor.reshape(weight.meta["val"].shape)).contiguous()
            # By the placeholder's name, which is one in code, too.
            added = add_buffer(self._program, f"{state.name}_{hint}", changed)
            self._added[state.name, hint] = added
        return self._added[state.name, hint]


def replace_node(program: ExportedProgram, old: torch.fx.Node, new: torch.fx.Node) -> None:
    """Let every use of `old` be one of `new`, as an output too, and take `old` out."""
    old.replace_all_uses_with(new)
    program.graph_signature.replace_all_uses(old.name, new.name)
    program.graph.erase_node(old)


def drop_unused_state(program: ExportedProgram) -> None:
    """Drop parameters and buffers that no node uses any more, so that they are not shipped."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in list(signature.input_specs):
        node = nodes[spec.arg.name]
        if spec.kind in _STATE and not node.users:
            program.graph.erase_node(node)
            signature.input_specs.remove(spec)
            if not any(other.target == spec.target for other in signature.input_specs):
                program.state_dict.pop(str(spec.target), None)
