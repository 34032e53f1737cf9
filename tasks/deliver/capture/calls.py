"""How a model is called: nested arguments become named tensors, and named tensors arguments again.

A package takes its tensors one by one. What a training team's forward takes in dictionaries,
tuples, dataclasses or by keyword is flattened here, by torch's own `pytree`; what isn't a tensor (a
flag, a number, None) is fixed to the example's value.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from handoff.artifacts.delivery.contract import Structure, identifiers
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.printable import one_line
from handoff.tasks.deliver.capture.results import form_of

Tensors = tuple[torch.Tensor, ...]
_T = TypeVar("_T")

# What may stand in a call or a result beside tensors.
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def format_tensor(tensor: torch.Tensor) -> str:
    """Return the dtype and the shape of a tensor of any: `float32 [4, 16]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@dataclass(frozen=True)
class Call:
    """The call of a model: the names of its tensors in order, and where each of them goes.

    `leaves` are all values of the flattened arguments, with None where a tensor goes (`indices`);
    `paths` are the tensors' places as Python writes them: `batch['user'][0]`. `losses` are the
    indices of tensors in the result that are no outputs. `defaults` are forward's own for arguments
    that the call doesn't give.
    """

    signature: inspect.Signature
    tree: pytree.TreeSpec
    leaves: tuple[object, ...]
    indices: tuple[int, ...]
    names: tuple[str, ...]
    paths: tuple[str, ...]
    fixed: tuple[str, ...]
    losses: tuple[int, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def fixed_notes(self) -> tuple[str, ...]:
        """Notes on arguments that are no input: as in the example, by default, or None."""
        defaults = {name: value for name, value in self.defaults.items() if value is not None}
        absent = [name for name, value in self.defaults.items() if value is None]
        notes = []
        if self.fixed:
            notes.append(
                f"fixed in the graph, as in the example's call: {_abbreviate(self.fixed)}; a "
                "tensor in its place would be an input"
            )
        if defaults:
            values = [f"{name}={value!r}" for name, value in defaults.items()]
            notes.append(
                f"fixed in the graph, as forward's defaults: {_abbreviate(values)}; give another "
                "value, or a tensor that becomes an input, in the factory's option 'keywords' "
                "(example_kwargs of handoff.deliver)"
            )
        if absent:
            notes.append(
                f"no inputs, because the example's call leaves them None: {_abbreviate(absent)}"
            )
        return tuple(map(one_line, notes))

    def bind(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments that hold `values`, one for each name."""
        leaves = list(self.leaves)
        for index, value in zip(self.indices, values, strict=True):
            leaves[index] = value
        arguments = pytree.tree_unflatten(leaves, self.tree)
        bound = inspect.BoundArguments(self.signature, arguments)
        return bound.args, bound.kwargs

    def run(self, module: nn.Module, tensors: Tensors) -> object:
        """Return what `module` gives for copies of `tensors`, in its own structure.

        They may be of any shapes and dtypes, one for each name.
        """
        return self.run_in_place(module, tuple(tensor.clone() for tensor in tensors))

    def run_in_place(self, module: nn.Module, tensors: Tensors) -> object:
        """Return what `module` gives for `tensors`, which it may change.

        They may be of any shapes and dtypes, one for each name.
        """
        args, kwargs = self.bind(tensors)
        return module(*args, **kwargs)

    def flatten(self, result: object) -> object:
        """Return the one output in a model's result, or all of them in a tuple.

        While it is traced, proxies stand for tensors.
        """
        leaves = [leaf for leaf in pytree.tree_leaves(result) if not isinstance(leaf, _PLAIN)]
        outputs = self.select_outputs(leaves)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def select_outputs(self, tensors: Sequence[_T]) -> tuple[_T, ...]:
        """Return those of a result's tensors, in their order, that are outputs."""
        return tuple(one for index, one in enumerate(tensors) if index not in self.losses)


_MOST_NAMED = 8
_LONGEST_VALUE = 60


def _abbreviate(values: Sequence[str]) -> str:
    shown = [
        one if len(one) <= _LONGEST_VALUE else one[: _LONGEST_VALUE - 3] + "..." for one in values
    ]
    more = len(values) - _MOST_NAMED
    return ", ".join(shown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def describe_call(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Call, Tensors]:
    """Return how `module` is called with these arguments, and the tensors in them, in order.

    Those may be of any shapes and dtypes. Raises `UsageProblem` where they don't fit forward, or
    hold no tensor.
    """
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = ", ".join(map(str, signature.parameters.values()))
        raise UsageProblem(
            "the example inputs don't fit the model",
            expected=f"the arguments of forward({parameters})",
            got=f"{len(args)} positional and {', '.join(kwargs) or 'no'} keyword arguments: "
            f"{error}",
            remedy="Give one input for each argument, in order; keyword arguments go into the "
            "factory's option 'keywords' (example_kwargs of handoff.deliver)",
        ) from error
    arguments = dict(bound.arguments)
    register_dataclasses(arguments)
    entries = [entry for name in arguments for entry in _named_leaves(name, arguments[name])]
    leaves, tree = pytree.tree_flatten(arguments)
    paths = [path for path, _ in entries]
    indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    _require_plain(paths, leaves, indices)
    call = Call(
        signature=signature,
        tree=tree,
        leaves=tuple(None if index in indices else leaf for index, leaf in enumerate(leaves)),
        indices=tuple(indices),
        names=identifiers([paths[index] for index in indices]),
        paths=tuple(paths[index] for index in indices),
        fixed=tuple(
            f"{path} = {leaf!r}" for path, leaf in zip(paths, leaves, strict=True)
            if not isinstance(leaf, torch.Tensor) and leaf is not None
        ),
        defaults={
            name: parameter.default for name, parameter in signature.parameters.items()
            if name not in arguments and parameter.default is not parameter.empty
        },
    )  # fmt: skip
    return call, tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _suggest_conversion(path: str, leaf: object) -> str:
    library = type(leaf).__module__.partition(".")[0]
    if library == "numpy":
        return f"Pass torch.from_numpy({path})"
    if library in ("pandas", "polars"):
        return f"Pass torch.tensor({path}.to_numpy())"
    return f"Pass its contents: dict({path}) if it is a mapping, or a dataclass"


def _require_plain(paths: list[str], leaves: list[object], indices: list[int]) -> None:
    for path, leaf in zip(paths, leaves, strict=True):
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            raise UsageProblem(
                f"the example input {path} can't be delivered",
                expected="tensors, numbers and text in tuples, lists, dictionaries or dataclasses",
                got=f"{type(leaf).__module__}.{type(leaf).__name__}",
                remedy=_suggest_conversion(path, leaf),
            )
    if not indices:
        raise UsageProblem(
            "the example inputs hold no tensor", expected="at least one tensor",
            got=", ".join(type(leaf).__name__ for leaf in leaves) or "none",
            remedy="Give the tensors that forward is called with",
        )  # fmt: skip


def _named_leaves(name: str, value: object) -> list[tuple[str, object]]:
    """Return each leaf in `value` with its path as Python writes it, beginning with `name`."""
    try:
        entries, _ = pytree.tree_flatten_with_path(value)
    except ValueError:
        # A class that was registered without keys, as Hugging Face's outputs are: by number.
        leaves = pytree.tree_leaves(value)
        return [(f"{name}[{index}]", leaf) for index, leaf in enumerate(leaves)]
    return [(f"{name}{pytree.keystr(path)}", leaf) for path, leaf in entries]


def describe_structure(call: Call, result: object) -> Structure:
    """Return where the flat inputs and outputs belong in the model's own call and result.

    Raises `UsageProblem` where the result holds something that no package can give.
    """
    register_dataclasses(result)
    entries = _named_leaves("", result)
    for path, leaf in entries:
        if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
            raise UsageProblem(
                f"the output {path or 'of forward'} can't be delivered",
                expected="tensors in tuples, lists, dictionaries or dataclasses",
                got=_full_name(type(leaf)), remedy="Return its contents from forward",
            )  # fmt: skip
    tensors = [path for path, leaf in entries if isinstance(leaf, torch.Tensor)]
    outputs = call.select_outputs(tensors)
    one_by_one = outputs in (("",), tuple(f"[{index}]" for index in range(len(outputs))))
    form = form_of(result, call.losses)
    return Structure(
        inputs=() if call.names == call.paths else call.paths,
        outputs=() if one_by_one else outputs,
        fixed=call.fixed,
        losses=tuple(tensors[index] for index in call.losses),
        result="" if form is None or form.is_flat else str(form),
    )


def register_dataclasses(value: object) -> None:
    """Let `pytree` see into the dataclasses in `value`, which it takes for leaves otherwise."""
    for leaf in pytree.tree_leaves(value):
        kind: Any = type(leaf)
        if dataclasses.is_dataclass(leaf) and kind not in pytree.SUPPORTED_NODES:
            torch.export.register_dataclass(kind, serialized_type_name=_full_name(kind))
            register_dataclasses([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
