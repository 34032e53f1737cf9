"""Retarget: a program that was exported on the CPU, as if it had been exported on a GPU.

`torch.export.passes.move_to_device_pass` moves real tensors, which needs the device. Here every
tensor becomes a fake one under the program's own fake mode: a shape, a type and a device, without
bytes. The bytes stay with the original program, and `Weights` finds them again.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.node import Argument, Node, map_aggregate
from torch.utils import _pytree as pytree

from handoff.artifacts.errors import BlessingRefused

# The device that packages are compiled for; where they are loaded, another index can be chosen.
DEVICE = torch.device("cuda", 0)

# An operator with a kernel for one of these runs on a GPU; one without is code for the CPU alone.
_KEYS = ("CUDA", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
_STRUCTURED_KEY = "CompositeExplicitAutogradNonFunctional"


def retarget(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of `program` whose tensors are fake CUDA tensors; `program` is left as it is.

    Parameters, buffers, constants, example inputs, what nodes are known to give, and devices that
    are written into the graph. What was one tensor (tied weights) is one tensor again, and strides
    are kept; a weight that is a view becomes a tensor of its own with the same values.

    Raises `BlessingRefused` for a program with an operator that no GPU has.
    """
    graph_module = _copy_module(program.graph_module)
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"]
    detected = detect_fake_mode(values)
    mode = detected if isinstance(detected, FakeTensorMode) else FakeTensorMode()
    _refuse_cpu_operators(graph_module)
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _retarget_node(node, mode)
            module.recompile()
    memo: dict[object, torch.Tensor] = {}
    state = {name: _fake_weight(t, mode, memo) for name, t in program.state_dict.items()}
    constants = {
        name: _fake_weight(value, mode, memo) if isinstance(value, torch.Tensor) else value
        for name, value in program.constants.items()
    }
    retargeted = ExportedProgram(
        root=graph_module,
        graph=graph_module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=state,
        range_constraints=copy.deepcopy(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        example_inputs=_fake_tree(program.example_inputs, mode),  # type: ignore[arg-type]
        constants=constants,
        verifiers=program.verifiers,
    )
    retargeted.validate()
    return retargeted


class Weights:
    """Finds the values that a retargeted program's fake weights stand for, by their storage."""

    def __init__(self, program: ExportedProgram, retargeted: ExportedProgram) -> None:
        """Pair the tensors of both programs by name."""
        self._carriers: dict[int, torch.Tensor] = {}
        # Held, so that no other storage is made at an address that was looked up.
        self._fakes: list[torch.Tensor] = []
        pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
            (program.state_dict, retargeted.state_dict),
            (program.constants, retargeted.constants),
        )
        for real, fake in pairs:
            for name, tensor in real.items():
                if isinstance(tensor, torch.Tensor):
                    counterpart = fake[name]
                    assert isinstance(counterpart, torch.Tensor)
                    self._pair(tensor, counterpart)

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a fake CUDA tensor like `tensor`, whose `untyped_storage()` gives the real bytes.

        None where the tensor isn't one of the program's weights, as it is there.
        """
        carrier = self._carriers.get(storage_address(tensor))
        return carrier if carrier is not None and _geometry(carrier) == _geometry(tensor) else None

    def value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values that stand for a constant of the compiler's, on the CPU.

        Those of the program's weight where `tensor` is one, else its own. Raises `TypeError` for a
        fake one that is none.
        """
        carrier = self.find(tensor)
        if carrier is not None:
            return torch.empty(0, dtype=carrier.dtype).set_(
                carrier.untyped_storage(), 0, carrier.size(), carrier.stride()
            )
        if isinstance(tensor, FakeTensor):
            raise TypeError("expected a weight of the program, got a tensor without values")
        return tensor.detach().cpu()

    def _pair(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        carrier = fake.detach()
        # Inductor asks for a constant's bytes by this method alone, and of this tensor for nothing
        # else but its geometry.
        storage = _minimal_storage(real.detach())
        carrier.untyped_storage = lambda: storage  # type: ignore[method-assign]
        self._carriers[storage_address(fake)] = carrier
        self._fakes.append(fake)


def storage_address(tensor: torch.Tensor) -> int:
    """Return what identifies a storage, also where several are fake, at address 0."""
    return int(torch.Tensor.untyped_storage(tensor)._cdata)


def _minimal_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return a storage that holds what the tensor reaches and no more, from its first element on.

    The tensor's own where that is so; else, as for a view of a larger tensor, a copy.
    """
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    extent = 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0
    storage = tensor.untyped_storage()
    if tensor.storage_offset() == 0 and storage.nbytes() == extent * tensor.element_size():
        return storage
    return tensor.as_strided((extent,), (1,), tensor.storage_offset()).clone().untyped_storage()


def _geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _copy_module(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    copied = copy.deepcopy(graph_module)
    for before, after in zip(graph_module.graph.nodes, copied.graph.nodes, strict=True):
        # A copied graph gives another name to a node that is called like a builtin (`input`), and
        # the signature knows nodes by name.
        after.name = before.name
    return copied


def _refuse_cpu_operators(graph_module: torch.fx.GraphModule) -> None:
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if isinstance(node.target, OpOverload) and not _runs_on_gpu(node.target):
                raise BlessingRefused(
                    f"the program calls {node.target}, which no GPU has",
                    expected="operators with a CUDA kernel, or made of such",
                    got="one for the CPU alone",
                    remedy="Export the model without decompositions for the CPU, and leave out "
                    "operators of your own that have no CUDA kernel",
                )


def _runs_on_gpu(operator: OpOverload) -> bool:
    name = operator.name()
    keys = (*_KEYS, _STRUCTURED_KEY)
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _retarget_node(node: Node, mode: FakeTensorMode) -> None:
    def to_device(argument: Argument) -> Argument:
        return DEVICE if isinstance(argument, torch.device) else argument

    node.args = map_aggregate(node.args, to_device)
    node.kwargs = map_aggregate(node.kwargs, to_device)
    if "val" in node.meta:
        node.meta["val"] = _fake_tree(node.meta["val"], mode)


def _fake_tree(tree: object, mode: FakeTensorMode) -> object:
    """Return `tree` with fake CUDA tensors of the same geometry for its tensors."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _fake_tensor(tensor, mode), tree)


def _fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    with mode:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device=DEVICE)


def _fake_weight(
    tensor: torch.Tensor, mode: FakeTensorMode, memo: dict[object, torch.Tensor]
) -> torch.Tensor:
    key = (
        storage_address(tensor), tensor.storage_offset(), tensor.size(), tensor.stride(),
        tensor.dtype, isinstance(tensor, torch.nn.Parameter),
    )  # fmt: skip
    if key not in memo:
        fake = _fake_tensor(tensor.detach(), mode)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[key] = torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake
    return memo[key]
