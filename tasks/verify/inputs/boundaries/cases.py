"""Makes named cases of what a graph decides at, and of what its toolchain is known to get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from handoff.artifacts.conformance.table import KnownFault, PlainTensor
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.verify.inputs.boundaries.placing import fill_with, place_targets
from handoff.tasks.verify.inputs.boundaries.targets import Kind, Target, find_targets
from handoff.tasks.verify.inputs.boundaries.tracing import Derived, Tracing, Use, trace

Tensors = tuple[torch.Tensor, ...]

_ASKED: dict[Kind, str] = {
    "constants": "around {}",
    "multiples": "multiples of {}",
    "steps": "at the steps of {}",
    "equal inputs": "equal inputs ({})",
    "edges": "at the edges of {}",
    "beyond": "beyond {}",
    "large quotients": "large quotients by {}",
}
# What leaves the numbers that were drawn.
_FAR: frozenset[Kind] = frozenset({"edges", "beyond", "large quotients"})
_MOST_TOLD = 3
# More of one kind are not asked of an input: each takes its share of the elements, and time.
_MOST_ASKED = 8


@dataclass(frozen=True)
class Question:
    """Inputs, what they ask, and which of them hold values that were neither declared nor drawn.

    They are of the signature's shapes and dtypes.
    """

    asks: str
    inputs: Tensors
    undeclared: tuple[str, ...] = ()


def find_questions(
    specs: Sequence[TensorSpec], model: Callable[..., Any], drawn: Tensors
) -> tuple[list[Question], Tracing]:
    """Run the model on drawn inputs; return what to ask it, and what was seen.

    `drawn` are of the shapes and dtypes of the `specs`, and so are the questions' inputs. The same
    model and inputs give the same questions.
    """
    tracing = trace(model, drawn)
    targets = [target for use in tracing.uses for target in find_targets(use)]
    questions = []
    for kind in get_args(Kind):
        asked = [target for target in targets if target.kind == kind]
        if asked and (question := _ask(kind, asked, specs, drawn)) is not None:
            questions.append(question)
    return questions, tracing


def _ask(
    kind: Kind, targets: list[Target], specs: Sequence[TensorSpec], drawn: Tensors
) -> Question | None:
    inputs, told, undeclared = list(drawn), [], []
    for place, spec in enumerate(specs):
        by_name = {t.label: t for t in reversed(targets) if t.use.operand.place == place}
        own = list(reversed(by_name.values()))[:_MOST_ASKED]
        changed = place_targets(spec, drawn[place], own) if own else None
        if changed is None:
            continue
        inputs[place] = changed
        told += [target.label for target in own]
        undeclared += [spec.name] if kind in _FAR and spec.low is None else []
    if not told:
        return None
    several = list(dict.fromkeys(told))
    shown = " and ".join(several[:_MOST_TOLD])
    if len(several) > _MOST_TOLD:
        shown += f" and {len(several) - _MOST_TOLD} more"
    return Question(_ASKED[kind].format(shown), tuple(inputs), tuple(undeclared))


# Beyond it, an undeclared value is further from zero than what is drawn.
_USUAL = 9.0


def ask_for(
    fault: KnownFault, specs: Sequence[TensorSpec], drawn: Tensors, tracing: Tracing
) -> Question | None:
    """Return inputs that lead the values which show `fault` to where the graph calls it.

    They are of the shapes and dtypes of `drawn`. The values stand in for all elements of what the
    operator takes, again and again. Where they can't be led there, as through an operator that the
    tracing doesn't follow, inputs of their dtype hold them. None where no input may hold such
    values, or where none were kept.
    """
    inputs = list(drawn)
    shown = [_as_tensor(plain) for plain in fault.inputs if _is_real(plain)]
    changed: dict[int, bool] = {}
    for operand, values in _places(fault, shown, tracing) or _inputs_of(shown, drawn):
        place = operand.place
        if place in changed:
            continue
        times = math.ceil(operand.value.numel() / values.numel())
        wanted = values.repeat(times)[: operand.value.numel()].reshape(operand.value.shape)
        filled = fill_with(specs[place], drawn[place], operand, wanted)
        if filled is not None:
            inputs[place] = filled
            changed[place] = specs[place].low is None and _is_far(values)
    if not changed:
        return None
    undeclared = tuple(specs[place].name for place, is_far in changed.items() if is_far)
    return Question(f"what {fault.name} gets wrong", tuple(inputs), undeclared)


def _places(
    fault: KnownFault, shown: Sequence[torch.Tensor], tracing: Tracing
) -> list[tuple[Derived, torch.Tensor]]:
    """Return what the fault's operators take of the inputs, with the values to take instead.

    Those are as `shown`, of any shape and the operand's dtype.
    """
    names = {call.partition("(")[0].split(".")[1] for call in fault.calls}
    # A cast is called by another name where it is run.
    names |= {"_to_copy"} if "to" in names else set()
    found = []
    for use in tracing.uses:
        number = _number(use)
        if use.operator._schema.name.partition("::")[2] not in names or number >= len(shown):
            continue
        if use.operand.value.dtype is shown[number].dtype:
            found.append((use.operand, shown[number]))
    return found


def _number(use: Use) -> int:
    """Return which one of the tensors that the operator took this is."""
    return sum(isinstance(value, torch.Tensor) for value in use.args[: use.argument])


def _inputs_of(shown: Sequence[torch.Tensor], drawn: Tensors) -> list[tuple[Derived, torch.Tensor]]:
    """Return each input with the first values of its dtype that no earlier input has.

    Both may be of any shape.
    """
    left, found = list(shown), []
    for place, tensor in enumerate(drawn):
        number = next((n for n, one in enumerate(left) if one.dtype is tensor.dtype), None)
        if number is not None:
            source = torch.arange(tensor.numel()).reshape(tensor.shape)
            found.append((Derived(place, source, tensor, lambda given: given), left.pop(number)))
    return found


def _is_real(plain: PlainTensor) -> bool:
    return bool(plain.values) and not plain.dtype.startswith("complex")


def _as_tensor(plain: PlainTensor) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, plain.dtype)
    through = torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(plain.values, dtype=through).to(kind)


def _is_far(values: torch.Tensor) -> bool:
    return values.is_floating_point() and bool((values.abs().nan_to_num(torch.inf) > _USUAL).any())
