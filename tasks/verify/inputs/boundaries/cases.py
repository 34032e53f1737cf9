"""Makes named cases of what a graph decides at, and of what its toolchain is known to get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from handoff.artifacts.conformance.table import KnownFault, PlainTensor
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.verify.inputs.boundaries.placing import fill_input, place_targets
from handoff.tasks.verify.inputs.boundaries.targets import Kind, Target, find_targets
from handoff.tasks.verify.inputs.boundaries.tracing import (
    DerivedTensor,
    InputTrackingMode,
    OperatorUse,
    trace,
)

Tensors = tuple[torch.Tensor, ...]

_LABELS: dict[Kind, str] = {
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
_MOST_SHOWN = 3
# An input gets no more of one kind: each takes its share of the elements, and time.
_MOST_TARGETS = 8


@dataclass(frozen=True)
class BoundaryCase:
    """Inputs at what a graph decides, and which of them hold values neither declared nor drawn.

    They are of the signature's shapes and dtypes.
    """

    label: str
    inputs: Tensors
    undeclared: tuple[str, ...] = ()


def find_boundary_cases(
    specs: Sequence[TensorSpec], model: Callable[..., Any], drawn: Tensors
) -> tuple[list[BoundaryCase], InputTrackingMode]:
    """Run the model on drawn inputs; return the cases to run it on, and what was traced.

    `drawn` are of the shapes and dtypes of the `specs`, and so are the cases' inputs. The same
    model and inputs give the same cases.
    """
    tracer = trace(model, drawn)
    targets = [target for use in tracer.uses for target in find_targets(use)]
    cases = []
    for kind in get_args(Kind):
        of_kind = [target for target in targets if target.kind == kind]
        if of_kind and (case := _make_case(kind, of_kind, specs, drawn)) is not None:
            cases.append(case)
    return cases, tracer


def _make_case(
    kind: Kind, targets: list[Target], specs: Sequence[TensorSpec], drawn: Tensors
) -> BoundaryCase | None:
    inputs, labels, undeclared = list(drawn), [], []
    for index, spec in enumerate(specs):
        by_name = {t.label: t for t in reversed(targets) if t.use.operand.input_index == index}
        chosen = list(reversed(by_name.values()))[:_MOST_TARGETS]
        changed = place_targets(spec, drawn[index], chosen) if chosen else None
        if changed is None:
            continue
        inputs[index] = changed
        labels += [target.label for target in chosen]
        undeclared += [spec.name] if kind in _FAR and spec.low is None else []
    if not labels:
        return None
    unique = list(dict.fromkeys(labels))
    text = " and ".join(unique[:_MOST_SHOWN])
    if len(unique) > _MOST_SHOWN:
        text += f" and {len(unique) - _MOST_SHOWN} more"
    return BoundaryCase(_LABELS[kind].format(text), tuple(inputs), tuple(undeclared))


# Beyond it, an undeclared value is further from zero than what is drawn.
_USUAL = 9.0


def make_fault_case(
    fault: KnownFault, specs: Sequence[TensorSpec], drawn: Tensors, tracer: InputTrackingMode
) -> BoundaryCase | None:
    """Return inputs that lead the values which show `fault` to where the graph calls it.

    They are of the shapes and dtypes of `drawn`. The values stand in for all elements of what the
    operator takes, again and again. Where they can't be led there, as through an operator that the
    tracing doesn't follow, inputs of their dtype hold them. None where no input may hold such
    values, or where none were kept.
    """
    inputs = list(drawn)
    examples = [_to_tensor(plain) for plain in fault.inputs if _is_real(plain)]
    changed: dict[int, bool] = {}
    for operand, values in _find_operands(fault, examples, tracer) or _match_inputs(
        examples, drawn
    ):
        index = operand.input_index
        if index in changed:
            continue
        times = math.ceil(operand.value.numel() / values.numel())
        targets = values.repeat(times)[: operand.value.numel()].reshape(operand.value.shape)
        filled = fill_input(specs[index], drawn[index], operand, targets)
        if filled is not None:
            inputs[index] = filled
            changed[index] = specs[index].low is None and _is_far(values)
    if not changed:
        return None
    undeclared = tuple(specs[index].name for index, is_far in changed.items() if is_far)
    return BoundaryCase(f"what {fault.name} gets wrong", tuple(inputs), undeclared)


def _find_operands(
    fault: KnownFault, examples: Sequence[torch.Tensor], tracer: InputTrackingMode
) -> list[tuple[DerivedTensor, torch.Tensor]]:
    """Return what the fault's operators take of the inputs, with the values to take instead.

    Those are as `examples`, of any shape and the operand's dtype.
    """
    names = {call.partition("(")[0].split(".")[1] for call in fault.calls}
    # A cast is called by another name where it is run.
    names |= {"_to_copy"} if "to" in names else set()
    found = []
    for use in tracer.uses:
        position = _tensor_position(use)
        if use.operator._schema.name.partition("::")[2] not in names or position >= len(examples):
            continue
        if use.operand.value.dtype is examples[position].dtype:
            found.append((use.operand, examples[position]))
    return found


def _tensor_position(use: OperatorUse) -> int:
    """Return which one of the tensors that the operator took this is."""
    return sum(isinstance(value, torch.Tensor) for value in use.args[: use.argument])


def _match_inputs(
    examples: Sequence[torch.Tensor], drawn: Tensors
) -> list[tuple[DerivedTensor, torch.Tensor]]:
    """Return each input with the first values of its dtype that no earlier input has.

    Both may be of any shape.
    """
    unused, found = list(examples), []
    for index, tensor in enumerate(drawn):
        position = next(
            (n for n, example in enumerate(unused) if example.dtype is tensor.dtype), None
        )
        if position is not None:
            source = torch.arange(tensor.numel()).reshape(tensor.shape)
            found.append(
                (DerivedTensor(index, source, tensor, lambda values: values), unused.pop(position))
            )
    return found


def _is_real(plain: PlainTensor) -> bool:
    return bool(plain.values) and not plain.dtype.startswith("complex")


def _to_tensor(plain: PlainTensor) -> torch.Tensor:
    kind: torch.dtype = getattr(torch, plain.dtype)
    through = torch.float64 if kind.is_floating_point else torch.int64
    return torch.tensor(plain.values, dtype=through).to(kind)


def _is_far(values: torch.Tensor) -> bool:
    return values.is_floating_point() and bool((values.abs().nan_to_num(torch.inf) > _USUAL).any())
