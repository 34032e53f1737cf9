"""Runs a model once, and notes which operators decide something about which of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Tensors = tuple[torch.Tensor, ...]

# Elementwise, without torch's tag that says so.
_ELEMENTWISE = frozenset({
    "_to_copy", "floor_divide", "hardswish", "hardsigmoid", "softshrink", "hardshrink", "elu",
    "leaky_relu", "celu", "selu", "clone", "detach", "alias", "bernoulli", "lift_fresh",
})  # fmt: skip
# They give elements of their first argument, elsewhere.
_CARRYING = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "permute",
    "transpose", "t", "expand", "select", "slice", "narrow", "unfold", "diagonal", "as_strided",
    "flip", "roll", "repeat", "index_select", "gather",
})  # fmt: skip
# Of those, the ones that keep the order of the elements; how they lie in memory differs.
_VIEWS = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias"})
# Beyond so many operators between an input and a decision, no input is looked for.
_LONGEST = 24


@dataclass(frozen=True)
class Derived:
    """A tensor each of whose elements is computed from one element of one input.

    `source`, int64 of the tensor's shape, tells which, by its place in the flattened input, and
    `replay` computes the tensor from other values of that input, of the input's shape and dtype.
    """

    place: int
    source: torch.Tensor
    value: torch.Tensor
    replay: Callable[[torch.Tensor], torch.Tensor]
    length: int = 0


@dataclass(frozen=True)
class Use:
    """An operator that took something derived from an input: as argument number `argument`.

    `args` and `kwargs` are what it took; `derived` what is known of its tensors, by argument.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argument: int
    derived: dict[int, Derived]
    result: Any

    @property
    def name(self) -> str:
        """The operator's name without overload: `floor_divide`."""
        name: str = self.operator._schema.name.partition("::")[2]
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def operand(self) -> Derived:
        """What it took at `argument`."""
        return self.derived[self.argument]


class Tracing(TorchDispatchMode):
    """While it is entered, follows the elements of `inputs`, and keeps the uses of them."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """Begin with the inputs themselves, the very tensors that the model is called with."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.uses: list[Use] = []
        self.eight_bit_reductions = False
        self._known: dict[int, Derived] = {}
        for place, tensor in enumerate(inputs):
            source = torch.arange(tensor.numel()).reshape(tensor.shape)
            self._known[id(tensor)] = Derived(place, source, tensor, lambda given: given)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and note what it took."""
        kwargs = kwargs or {}
        derived = {
            at: self._known[id(value)] for at, value in enumerate(args) if id(value) in self._known
        }
        before = {at: one.value.clone() for at, one in derived.items()}
        result = func(*args, **kwargs)
        self._notice_reduction(func, args, result)
        if func._schema.is_mutable:
            # What it wrote to is no longer what it was derived as.
            for value in pytree.tree_leaves((args, kwargs)):
                self._known.pop(id(value), None)
        if not derived:
            return result
        kept = tuple(before.get(at, value) for at, value in enumerate(args))
        for at in derived:
            self.uses.append(Use(func, kept, kwargs, at, derived, result))
        if len(derived) == 1 and isinstance(result, torch.Tensor):
            self._follow(func, kept, kwargs, derived, result)
        return result

    def _follow(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derived: dict[int, Derived],
        result: torch.Tensor,
    ) -> None:
        """Note what the result (of any shape) is derived from, if each element has one source."""
        ((at, one),) = derived.items()
        name = func._schema.name.partition("::")[2].rstrip("_")
        is_elementwise = torch.Tag.pointwise in func.tags or name in _ELEMENTWISE
        if one.length >= _LONGEST or not (is_elementwise or (name in _CARRYING and at == 0)):
            return
        try:
            if is_elementwise:
                source = one.source.expand(result.shape)
            elif name in _VIEWS:
                source = one.source.reshape(result.shape)
            else:
                source = func(one.source, *args[1:], **kwargs)
        except RuntimeError:
            return
        if source.shape != result.shape:
            return

        def replay(given: torch.Tensor) -> torch.Tensor:
            changed = list(args)
            changed[at] = one.replay(given).clone()
            computed: torch.Tensor = func(*changed, **kwargs)
            return computed

        self._known[id(result)] = Derived(one.place, source, result, replay, one.length + 1)

    def _notice_reduction(self, func: Any, args: Any, result: Any) -> None:  # noqa: ANN401
        taken = args[0] if args else None
        if not isinstance(taken, torch.Tensor) or taken.element_size() != 1:
            return
        given = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
        carries = func._schema.name.partition("::")[2] in _CARRYING
        if given and not carries and given[0].numel() < taken.numel():
            self.eight_bit_reductions = True


def trace(model: Callable[..., Any], inputs: Tensors) -> Tracing:
    """Run the model on copies of `inputs`, of any shapes and dtypes; return what was noted."""
    given = [tensor.clone() for tensor in inputs]
    tracing = Tracing(given)
    with torch.no_grad(), tracing:
        model(*given)
    return tracing
