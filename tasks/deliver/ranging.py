"""The ranges of a model's inputs: declared, or read off a run of the model, or the example's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from handoff.artifacts.delivery.signature import DECLARED, FROM_EXAMPLE, ModelSignature, TensorSpec
from handoff.tasks.deliver.capture.calls import Call, Tensors
from handoff.tasks.deliver.capture.tracer import training_parts_left_out
from handoff.tasks.deliver.golden import one_line, other_size, undisturbed
from handoff.tasks.deliver.ranges.reading import Reading, guess, read_ranges, state_of, watch_values
from handoff.tasks.deliver.ranges.uses import Uses
from handoff.tasks.verify.plan import CaseSpec, draw_inputs

_ORIGIN_LENGTH = 200


def with_ranges(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature
) -> tuple[ModelSignature, tuple[str, ...]]:
    """Return the signature with ranges of what nobody declared, and a note on each that is guessed.

    The model is run on the example, of the signature's shapes and dtypes, and at other sizes on
    rows of it; then on the ends of what was read off. What it doesn't run on was read off wrongly,
    and is guessed from the example. A model that doesn't even run on that is left to what comes
    next.
    """
    try:
        uses = _watch(module, call, inputs)
    except Exception:  # noqa: BLE001 - told with its shapes when the golden outputs are made
        return signature, ()
    found = read_ranges(uses, inputs, _watch_other_sizes(module, call, inputs, signature))
    readings = [
        None if spec.origin == DECLARED else reading
        for spec, reading in zip(signature.inputs, found, strict=True)
    ]
    checked = _checked(module, call, inputs, readings)
    specs = tuple(
        spec if reading is None else _described(spec, reading)
        for spec, reading in zip(signature.inputs, checked, strict=True)
    )
    notes = tuple(
        note for spec, reading in zip(specs, checked, strict=True) if reading is not None
        for note in _notes(spec, reading)
    )  # fmt: skip
    return replace(signature, inputs=specs), notes


def _watch(module: nn.Module, call: Call, inputs: Tensors) -> Uses:
    with undisturbed(module), training_parts_left_out():
        return watch_values(lambda *tensors: call.run(module, tensors), inputs, state_of(module))


def _watch_other_sizes(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature
) -> Uses | None:
    """Return the uses at other sizes, of rows of the example; None where it runs at no others."""
    taken = signature.measure(
        {spec.name: tuple(t.shape) for spec, t in zip(signature.inputs, inputs, strict=True)}
    )
    sizes = {name: other_size(d, taken[name]) for name, d in signature.dimensions.items()}
    if sizes == taken:
        return None
    try:
        rows = draw_inputs(signature, CaseSpec(f"ranges {sizes}", sizes, 0), inputs)
        return _watch(module, call, rows)
    except Exception:  # noqa: BLE001 - told when the golden outputs are made at that size
        return None


def _checked(
    module: nn.Module, call: Call, inputs: Tensors, readings: Sequence[Reading | None]
) -> list[Reading | None]:
    """Return the readings; those on whose ends the model fails become guesses."""
    if _why_not(module, call, inputs, readings) == "":
        return list(readings)
    checked: list[Reading | None] = []
    for place, (tensor, reading) in enumerate(zip(inputs, readings, strict=True)):
        alone = [reading if other == place else None for other in range(len(inputs))]
        why = _why_not(module, call, inputs, alone)
        fails = bool(why) and reading is not None and not reading.widened
        checked.append(_failing(tensor, reading, why) if fails else reading)
    return checked


def _failing(tensor: torch.Tensor, reading: Reading | None, why: str) -> Reading | None:
    if reading is None:
        return None
    return guess(tensor, f"{reading.told}, and the model fails at an end of it: {why}")


def _why_not(
    module: nn.Module, call: Call, inputs: Tensors, readings: Sequence[Reading | None]
) -> str:
    """Return why the model doesn't run with the inputs that were read at their ends, or ''."""
    if all(reading is None or reading.source == "example" for reading in readings):
        return ""
    for is_high in (False, True):
        ends = tuple(
            tensor if reading is None or reading.source == "example" else reading.end(
                tensor, is_high=is_high)
            for tensor, reading in zip(inputs, readings, strict=True)
        )  # fmt: skip
        try:
            with undisturbed(module), training_parts_left_out(), torch.no_grad():
                call.run(module, ends)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is told
            return one_line(error)
    return ""


def _described(spec: TensorSpec, reading: Reading) -> TensorSpec:
    told = reading.told if reading.source != "example" else f"{FROM_EXAMPLE}: {reading.told}"
    plain = "".join(character if character.isprintable() else "?" for character in told)
    origin = plain if len(plain) <= _ORIGIN_LENGTH else plain[: _ORIGIN_LENGTH - 3] + "..."
    return replace(spec, low=reading.low, high=reading.high, origin=origin)


def _notes(spec: TensorSpec, reading: Reading) -> tuple[str, ...]:
    say = f"ranges={{'{spec.name}': (LOW, HIGH)}} says so"
    if spec.is_guessed:
        return (
            f"{spec.name} takes {spec.values} because its example does ({reading.told}), and "
            f"whatever else is refused: {say}",
        )
    if reading.narrowed or reading.widened:
        return (f"{spec.name} takes {spec.values}, {spec.origin}: {say}, or give each column an "
                "input of its own",)  # fmt: skip
    return ()
