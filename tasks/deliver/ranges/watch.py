"""The mode under which a model is run, that follows its inputs' elements from operator to operator.

What is not known here is followed no further, and noted as unread: nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from handoff.tasks.deliver.ranges import shadow as shadows
from handoff.tasks.deliver.ranges.shadow import Shadow
from handoff.tasks.deliver.ranges.steps import STEPS, OperatorCall
from handoff.tasks.deliver.ranges.uses import Kind, Table, Uses

# Each element of the result is one of the first argument's.
_MOVES = frozenset((
    "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "narrow",
    "split", "split_with_sizes", "unbind", "chunk", "clone", "alias", "detach", "lift_fresh", "cat",
    "concatenate", "stack", "flip", "roll", "repeat", "index_select", "gather", "index", "unfold",
    "diagonal", "tril", "triu", "contiguous",
))  # fmt: skip
_RESHAPES = frozenset(("view", "_unsafe_view", "reshape", "_reshape_alias"))
# The values have no part in the result.
_WITHOUT_VALUES = frozenset((
    "ones_like", "zeros_like", "full_like", "empty_like", "rand_like", "randn_like", "new_ones",
    "new_zeros", "new_full", "new_empty", "new_empty_strided", "sym_size", "sym_numel",
    "sym_stride", "_assert_tensor_metadata",
))  # fmt: skip
# One number of all: like a sum, it says nothing of each.
_EXTREMES = frozenset(("min", "max", "amin", "amax", "aminmax", "argmin", "argmax"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
# What looks up by number along an axis, which is the second argument, the number being the third.
_ALONG_AXIS = frozenset((
    "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add",
    "index_add_", "scatter_reduce", "index_copy", "index_fill",
))  # fmt: skip
_BY_INDICES = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))


class ValueWatch(TorchDispatchMode):
    """Follows the elements of `inputs` into `uses` while a model runs.

    `names` are those of the model's weights and buffers, by the place of their storage.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], names: Mapping[int, str]) -> None:
        """Begin with the inputs, each a tensor of its own, of any shape and dtype."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.uses = Uses(inputs)
        self._names = names
        # What is followed, and all that was computed from an input.
        self._shadows: Any = WeakTensorKeyDictionary()
        self._computed: Any = WeakTensorKeyDictionary()
        for index, tensor in enumerate(inputs):
            self._computed[tensor] = True
            if not tensor.is_complex() and tensor.dtype is not torch.bool:
                first = self.uses.firsts[index]
                self._shadows[tensor] = shadows.of_input(tensor, first, index)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Any,  # noqa: ANN401 - as torch calls it
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator gives
        """Run the operator, and note what it does with the elements that are followed."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        is_computed = any(tensor in self._computed for tensor in tensors)
        followed = [tensor for tensor in tensors if tensor in self._shadows]
        result = func(*args, **kwargs)
        if not is_computed:
            return result
        name = func._schema.name.partition("::")[2]
        name = name if name == "_to_copy" else name.removesuffix("_copy")
        if name not in _WITHOUT_VALUES:
            for tensor in _tensors(result):
                self._computed[tensor] = True
        if followed:
            try:
                self._process_call(func, _to_operator_call(func, name, args, kwargs, result))
            except (RuntimeError, ValueError, TypeError, IndexError):
                # Nothing is concluded of what can't be followed: it becomes a question.
                self._note_each(followed, "unread", _describe_use(name))
        return result

    def end(self, outputs: Sequence[torch.Tensor]) -> Uses:
        """Return what was seen; an output that was computed from an element counts with it.

        Outputs may be of any shapes and dtypes.
        """
        for tensor in outputs:
            shadow = self._shadows.get(tensor)
            if shadow is not None and not shadow.is_untouched:
                self.note(shadow, "counted with")
        return self.uses

    def shadow_of(self, value: object) -> Shadow:
        """Return what is known of an argument."""
        if isinstance(value, torch.Tensor):
            if value in self._shadows:
                shadow: Shadow = self._shadows[value]
                return shadow
            if value in self._computed or value.is_complex():
                return shadows.of_unknown(value)
        if isinstance(value, (torch.Tensor, int, float)):
            return shadows.of_constant(value)
        raise TypeError(f"expected a tensor or a number, got {type(value).__name__}")

    def note(self, shadow: Shadow, kind: Kind, what: str = "") -> None:
        """Note a use of the inputs in a shadow."""
        self.uses.note(shadow, kind, what)

    def follow_result(self, shadow: Shadow, result: torch.Tensor) -> None:
        """Follow a result, to whose shape the shadow broadcasts, from here on; bool isn't."""
        if result.dtype is not torch.bool:
            (expanded,) = shadows.transform((shadow,), lambda parts: parts[0].expand(result.shape))
            self._shadows[result] = expanded

    def _process_call(self, func: Any, call: OperatorCall) -> None:  # noqa: ANN401 - an operator
        """Note the uses in one call, and follow its result where it can be."""
        name = call.name
        looks_up = self._note_lookups(call)
        if name in _COMPARISONS:
            self._compare(*call.args[:2])
        elif name in STEPS:
            shadow = STEPS[name](self, call)
            if shadow is not None:
                self.follow_result(shadow, call.result)
        elif name in _RESHAPES:
            shape = call.result.shape
            (shadow,) = shadows.transform((self.shadow_of(call.args[0]),),
                                     lambda parts: parts[0].reshape(shape))  # fmt: skip
            self.follow_result(shadow, call.result)
        elif name in _MOVES:
            if self._is_followed(call.args[0]):
                self._move(func, call)
        elif name in _EXTREMES:
            self._note_each(_tensors(call.args), "summed", "")
        elif not looks_up and name not in _WITHOUT_VALUES:
            self._note_each(_tensors((call.args, call.kwargs)), "unread", _describe_use(name))

    def _note_lookups(self, call: OperatorCall) -> bool:
        """Note what is looked up by number in this call; return whether it is such a call."""
        name, args = call.name, call.args
        if name == "embedding" or name.startswith("_embedding_bag"):
            self._note_lookup(args[1], args[0], 0)
            # The offsets of bags, and weights of each one in them.
            self._note_each(_tensors(args[2:]), "unread", _describe_use(name))
        elif name in _BY_INDICES:
            for axis, index in enumerate(_expand_masks(args[1])):
                self._note_lookup(index, args[0], axis)
            self._note_each(_tensors(args[2:]), "unread", _describe_use(name))
        elif name in _ALONG_AXIS:
            self._note_lookup(args[2], args[0], int(args[1]))
            self._note_each(_tensors(args[3:]), "unread", _describe_use(name))
        else:
            return False
        return True

    def _note_lookup(self, index: object, table: torch.Tensor, axis: int) -> None:
        if self._is_followed(index) and table.dim():
            key = table.untyped_storage().data_ptr()
            name = "" if table in self._computed else self._names.get(key, "")
            self.uses.look_up(self.shadow_of(index), Table(name, table.shape[axis]))

    def _compare(self, left: object, right: object) -> None:
        for one, other in ((left, right), (right, left)):
            if self._is_followed(one):
                self.uses.compare(self.shadow_of(one), self.shadow_of(other))

    def _move(self, func: Any, call: OperatorCall) -> None:  # noqa: ANN401 - an operator
        first, rest = call.args[0], call.args[1:]
        several = isinstance(first, (list, tuple))
        operands = [self.shadow_of(tensor) for tensor in (first if several else [first])]

        def move(parts: Sequence[torch.Tensor]) -> object:
            return func(list(parts) if several else parts[0], *rest)

        # Arguments by name (a memory format) say nothing of the elements.
        moved = shadows.transform(operands, move)
        for result, shadow in zip(_tensors(call.result), moved, strict=True):
            self.follow_result(shadow, result)

    def _note_each(self, tensors: Sequence[torch.Tensor], kind: Kind, what: str) -> None:
        for tensor in tensors:
            if self._is_followed(tensor):
                # A number among floating-point numbers is what it is for most operators.
                counts = kind == "unread" and tensor.is_floating_point()
                self.note(self.shadow_of(tensor), "counted with" if counts else kind, what)

    def _is_followed(self, value: object) -> bool:
        if isinstance(value, (list, tuple)):
            return any(self._is_followed(one) for one in value)
        return isinstance(value, torch.Tensor) and value in self._shadows


def _to_operator_call(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any  # noqa: ANN401
) -> OperatorCall:  # fmt: skip
    """Return a call with its arguments in their places, and defaults where none was given."""
    arguments = func._schema.arguments
    remaining = [
        kwargs.get(a.name, a.default_value) for a in arguments[len(args) :] if not a.kwarg_only
    ]
    keywords = {a.name: kwargs[a.name] for a in arguments if a.kwarg_only and a.name in kwargs}
    return OperatorCall(name, [*args, *remaining], keywords, result)


def _describe_use(name: str) -> str:
    """Say where a value went, by the name that people call the operator by: `unique`."""
    return f"given to {name.strip('_').rstrip('0123456789') if name.startswith('_') else name}"


def _tensors(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - whatever an operator takes
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _expand_masks(indices: Sequence[Any]) -> list[Any]:
    """Return one index for each axis of what is indexed: a mask stands for as many as it has."""
    expanded: list[Any] = []
    for index in indices:
        is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool
        expanded += [None] * index.dim() if is_mask else [index]
    return expanded
