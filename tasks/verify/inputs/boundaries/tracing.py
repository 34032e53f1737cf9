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
_MOVING = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "permute",
    "transpose", "t", "expand", "select", "slice", "narrow", "unfold", "diagonal", "as_strided",
    "flip", "roll", "repeat", "index_select", "gather",
})  # fmt: skip
# Of those, the ones that keep the order of the elements; how they lie in memory differs.
_VIEWS = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias"})
# Beyond so many operators between an input and a decision, no input is looked for.
_LONGEST = 24


@dataclass(frozen=True)
class DerivedTensor:
    """A tensor each of whose elements is computed from one element of one input.

    `source`, int64 of the tensor's shape, says which, by its place in the flattened input, and
    `replay` computes the tensor from other values of that input, of the input's shape and dtype.
    """

    input_index: int
    source: torch.Tensor
    value: torch.Tensor
    replay: Callable[[torch.Tensor], torch.Tensor]
    length: int = 0


@dataclass(frozen=True)
class OperatorUse:
    """An operator that took something derived from an input: as argument number `argument`.

    `args` and `kwargs` are what it took; `derived` what is known of its tensors, by argument.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argument: int
    derived: dict[int, DerivedTensor]
    result: Any

    @property
    def name(self) -> str:
        """The operator's name without overload: `floor_divide`."""
        name: str = self.operator._schema.name.partition("::")[2]
        return name if name.startswith("__") else name.rstrip("_")

    @property
    def operand(self) -> DerivedTensor:
        """What it took at `argument`."""
        return self.derived[self.argument]


class InputTrackingMode(TorchDispatchMode):
    """While it is entered, follows the elements of `inputs`, and keeps the uses of them."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """Begin with the inputs themselves, the very tensors that the model is called with."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.uses: list[OperatorUse] = []
        self.eight_bit_reductions = False
        self._derived: dict[int, DerivedTensor] = {}
        for index, tensor in enumerate(inputs):
            source = torch.arange(tensor.numel()).reshape(tensor.shape)
            self._derived[id(tensor)] = DerivedTensor(index, source, tensor, lambda values: values)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and note what it took."""
        kwargs = kwargs or {}
        derived = {
            argument: self._derived[id(value)]
            for argument, value in enumerate(args)
            if id(value) in self._derived
        }
        before = {argument: tensor.value.clone() for argument, tensor in derived.items()}
        result = func(*args, **kwargs)
        self._notice_reduction(func, args, result)
        if func._schema.is_mutable:
            # What it wrote to is no longer what it was derived as.
            for value in pytree.tree_leaves((args, kwargs)):
                self._derived.pop(id(value), None)
        if not derived:
            return result
        args_before = tuple(before.get(argument, value) for argument, value in enumerate(args))
        for argument in derived:
            self.uses.append(OperatorUse(func, args_before, kwargs, argument, derived, result))
        if len(derived) == 1 and isinstance(result, torch.Tensor):
            self._follow(func, args_before, kwargs, derived, result)
        return result

    def _follow(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derived: dict[int, DerivedTensor],
        result: torch.Tensor,
    ) -> None:
        """Note what the result (of any shape) is derived from, if each element has one source."""
        ((argument, operand),) = derived.items()
        name = func._schema.name.partition("::")[2].rstrip("_")
        is_elementwise = torch.Tag.pointwise in func.tags or name in _ELEMENTWISE
        if operand.length >= _LONGEST or not (
            is_elementwise or (name in _MOVING and argument == 0)
        ):
            return
        try:
            if is_elementwise:
                source = operand.source.expand(result.shape)
            elif name in _VIEWS:
                source = operand.source.reshape(result.shape)
            else:
                source = func(operand.source, *args[1:], **kwargs)
        except RuntimeError:
            return
        if source.shape != result.shape:
            return

        def replay(values: torch.Tensor) -> torch.Tensor:
            changed = list(args)
            changed[argument] = operand.replay(values).clone()
            computed: torch.Tensor = func(*changed, **kwargs)
            return computed

        self._derived[id(result)] = DerivedTensor(
            operand.input_index, source, result, replay, operand.length + 1
        )

    def _notice_reduction(self, func: Any, args: Any, result: Any) -> None:  # noqa: ANN401
        operand = args[0] if args else None
        if not isinstance(operand, torch.Tensor) or operand.element_size() != 1:
            return
        results = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
        carries = func._schema.name.partition("::")[2] in _MOVING
        if results and not carries and results[0].numel() < operand.numel():
            self.eight_bit_reductions = True


def trace(model: Callable[..., Any], inputs: Tensors) -> InputTrackingMode:
    """Run the model on copies of `inputs`, of any shapes and dtypes; return what was noted."""
    cloned = [tensor.clone() for tensor in inputs]
    tracer = InputTrackingMode(cloned)
    with torch.no_grad(), tracer:
        model(*cloned)
    return tracer
