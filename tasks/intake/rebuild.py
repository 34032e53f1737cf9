"""Puts graph, modules and state together again as a `torch.fx.GraphModule`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.fx

from handoff.artifacts.delivery.contract import STATE_FILE
from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.files.tensors import TensorFile, find_dtype
from handoff.tasks.intake.module_source import ModuleSource, Ref
from handoff.tasks.intake.modules import ModuleBuilder, build_layer
from handoff.tasks.intake.values import MODULE

_MAX_PATHS = 100_000
_MISMATCH_REMEDY = (
    "Deliver the model again into an empty folder; these files come from different runs of "
    "to_folder, or were changed after it"
)


@dataclass(frozen=True)
class RebuiltModule:
    """The graph module, and what was noticed on the way."""

    module: torch.fx.GraphModule
    training: tuple[str, ...]
    ignored: tuple[str, ...]


def rebuild(source: ModuleSource, folder: Path) -> RebuiltModule:
    """Return the graph module that `source` and the `.pt` files in `folder` describe.

    It is in evaluation mode, needs no gradients, and keeps the dtypes and ties of the state.
    Raises `DeliveryUnreadable` with a reason.
    """
    root = torch.nn.Module()
    training: list[str] = []
    ignored: list[str] = []
    for child in source.children:
        where = f"{MODULE}:{child.line}"
        _check_child_name(child.name, where)
        if child.layer is not None:
            root._modules[child.name] = build_layer(child.layer, where)
            continue
        builder = ModuleBuilder(TensorFile(folder / f"{child.name}.pt"))
        root._modules[child.name] = builder.build()
        training += [f"{child.name}: {description}" for description in builder.training]
        ignored += [f"{child.name}.{name}" for name in builder.ignored]
    for tensor in source.tensors:
        _check_child_name(tensor.name, f"{MODULE}:{tensor.line}")
        dtype = find_dtype(tensor.dtype)
        empty = torch.empty(tensor.shape, dtype=dtype, device="meta")
        if tensor.is_parameter:
            root._parameters[tensor.name] = torch.nn.Parameter(empty, requires_grad=False)
        else:
            root._buffers[tensor.name] = empty
    fill_state(root, TensorFile(folder / STATE_FILE))
    module = torch.fx.GraphModule(root, _build_graph(source, root), source.class_name)
    return RebuiltModule(module.eval().requires_grad_(False), tuple(training), tuple(ignored))


def _check_child_name(name: str, where: str) -> None:
    if hasattr(torch.fx.GraphModule, name) or name in ("training", "graph", "_graph"):
        raise refuse(
            f"{MODULE} gives a child the name of a method",
            expected="a name that torch.nn.Module doesn't use",
            got=name,
            where=where,
            remedy=f"Rename {name} in the model, and deliver again",
        )


def fill_state(root: torch.nn.Module, file: TensorFile) -> None:
    """Give every parameter and persistent buffer below `root` its tensor of the state file.

    Tensors that the state file ties are tied. Raises `DeliveryUnreadable` for a key too many or
    too few, another shape or dtype, or bits that differ from those in the child's own file.
    """
    state = file.content
    # torch.save writes an OrderedDict; what others write may be a plain one.
    if not isinstance(state, dict):
        raise _refuse_state("a dictionary of tensors", type(state).__name__)
    parameters: dict[int, torch.nn.Parameter] = {}
    expected = set()
    for key, owner, name, is_parameter in _named_slots(root):
        expected.add(key)
        if key not in state:
            raise _refuse_missing(key, is_parameter)
        tensor = file.tensor(state[key])
        current = owner._parameters[name] if is_parameter else owner._buffers[name]
        assert current is not None
        _check_tensor(key, current, tensor, owner)
        if is_parameter:
            owner._parameters[name] = parameters.setdefault(
                id(tensor), torch.nn.Parameter(tensor, requires_grad=False)
            )
        else:
            owner._buffers[name] = tensor
    unexpected = sorted(str(key) for key in state if key not in expected)
    if unexpected:
        raise _refuse_state("only keys of the model", unexpected[0])
    for module in root.modules():
        if isinstance(module, torch.nn.RNNBase):
            module._init_flat_weights()


def _named_slots(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, bool]]:
    for count, (path, owner) in enumerate(root.named_modules(remove_duplicate=False)):
        # Modules that are shared at every level have paths without number.
        if count > _MAX_PATHS:
            raise _refuse_state(f"a model of at most {_MAX_PATHS} modules", "more")
        prefix = f"{path}." if path else ""
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                yield prefix + name, owner, name, True
        for name, buffer in owner._buffers.items():
            if buffer is not None and name not in owner._non_persistent_buffers_set:
                yield prefix + name, owner, name, False


def _check_tensor(
    key: str, current: torch.Tensor, tensor: torch.Tensor, owner: torch.nn.Module
) -> None:
    if current.shape != tensor.shape:
        raise _refuse_state(f"{key} of shape {list(current.shape)}", f"{list(tensor.shape)}")
    if current.device.type == "meta":
        # The repr of a layer doesn't say its dtype, so the state decides between floating ones.
        is_layer = bool(owner._modules) is False and type(owner) is not torch.nn.Module
        both_floating = current.is_floating_point() and tensor.is_floating_point()
        if current.dtype != tensor.dtype and not (is_layer and both_floating):
            raise _refuse_state(f"{key} of {current.dtype}", str(tensor.dtype))
    elif current.dtype != tensor.dtype or not is_bitwise_equal(current, tensor):
        raise _refuse_state(f"{key} with the same bits as in the child's own file", "others")


def is_bitwise_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and dtype hold the same bits, NaN included."""
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
    return bool(torch.equal(*raw))


def _refuse_state(expected: str, got: str) -> Exception:
    return refuse(
        f"{STATE_FILE} does not belong to the other files",
        expected=expected,
        got=got,
        where=STATE_FILE,
        remedy=_MISMATCH_REMEDY,
    )


def _refuse_missing(key: str, is_parameter: bool) -> Exception:
    if is_parameter:
        return _refuse_state(f"a key {key}", "none")
    return refuse(
        f"{STATE_FILE} lacks the buffer {key}",
        expected=f"a key {key}",
        got="none",
        where=STATE_FILE,
        remedy=(
            "Register the buffer with persistent=True, since to_folder loses others; or deliver "
            "with 'handoff deliver'"
        ),
    )


def _build_graph(source: ModuleSource, root: torch.nn.Module) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    for step in source.steps:
        where = f"{MODULE}:{step.line}"
        if step.op in ("call_module", "get_attr"):
            _check_target(root, str(step.target), step.op, where)
        args = _link(step.args, nodes)
        kwargs = _link(step.kwargs, nodes)
        node = graph.create_node(step.op, step.target, args, kwargs, name=step.name)  # type: ignore[arg-type]
        if step.op != "output" and node.name != step.name:
            raise refuse(
                f"{MODULE} gives a value a name that torch.fx doesn't give",
                expected="a name that is no builtin's and no other value's",
                got=step.name,
                where=where,
            )
        node.meta["module_line"] = step.line
        nodes[step.name] = node
    return graph


def _link(value: object, nodes: dict[str, torch.fx.Node]) -> object:
    match value:
        case Ref(name=name):
            return nodes[name]
        case tuple():
            return tuple(_link(item, nodes) for item in value)
        case list():
            return [_link(item, nodes) for item in value]
        case dict():
            return {key: _link(item, nodes) for key, item in value.items()}
        case slice():
            return slice(*(_link(v, nodes) for v in (value.start, value.stop, value.step)))
    return value


def _check_target(root: torch.nn.Module, target: str, op: str, where: str) -> None:
    """Raise `DeliveryUnreadable` unless the path leads to a module to call, or to a tensor."""
    *path, last = target.split(".")
    owner: torch.nn.Module | None = root
    for part in path:
        owner = None if owner is None else owner._modules.get(part)
    found: object = None
    if owner is not None:
        if op == "call_module":
            found = owner._modules.get(last)
            # Containers such as ModuleList have no forward of their own.
            if found is not None and type(found).forward is torch.nn.Module.forward:
                found = None
        else:
            found = owner._parameters.get(last)
            found = owner._buffers.get(last) if found is None else found
    if found is None:
        raise refuse(
            f"{MODULE} uses self.{target}, which the delivery doesn't hold",
            expected="a module to call" if op == "call_module" else "a parameter or buffer",
            got="none of that name",
            where=where,
            remedy=(
                f"If forward assigns to self.{target}, the trace lost it: make it an input and an "
                "output of forward; otherwise deliver the model again with 'handoff deliver'"
            ),
        )
