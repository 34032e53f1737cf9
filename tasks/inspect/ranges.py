"""What the contract says of the inputs' values, beside what the graph does with them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from handoff.artifacts.delivery.signature import DECLARED, TensorSpec
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.deliver.ranges.reading import RangeReading, read_ranges, state_of, watch_values
from handoff.tasks.inspect.behaviour import Tensors, call
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.optimize.capture import summarize_export_error

_REMEDY = (
    "Say what is served: ranges={{'{0}': (LOW, HIGH)}} of deliver, low and high in delivery.toml"
)


def input_ranges(delivery: LoadedDelivery, inputs: Tensors) -> Iterator[Finding]:
    """Find whole numbers of which nobody said what they may be, or that the graph takes otherwise.

    `inputs` are some that the model runs on, of the contract's shapes and dtypes; what it fails on
    is found by others.
    """
    specs = delivery.contract.inputs
    integers = [spec for spec in specs if "int" in spec.dtype]
    yield from (
        _guessed_range_finding(spec) for spec in integers if spec.is_guessed or spec.low is None
    )
    if not integers or not all(tensor.numel() for tensor in inputs):
        return
    try:
        uses = watch_values(delivery.module, inputs, state_of(delivery.module))
    except Exception:  # noqa: BLE001 - the example that fails is found by `run_twice`
        return
    for index, (spec, reading) in enumerate(zip(specs, read_ranges(uses, inputs), strict=True)):
        if reading is None or spec not in integers or spec.low is None or spec.high is None:
            continue
        finding = _check_table_bounds(delivery, inputs, index, reading)
        if finding is not None:
            yield finding
        elif not spec.is_guessed:
            yield from _check_narrow_range(spec, spec.low, spec.high, reading)


def _guessed_range_finding(spec: TensorSpec) -> Finding:
    if spec.low is None:
        message = (f"nothing says which numbers {spec.name} may hold: 0 and 1 are verified, and "
                   "none is refused when it is served")  # fmt: skip
    else:
        why = spec.origin.partition(": ")[2]
        message = (
            f"{spec.name} takes {spec.values} because its example does"
            + (f" ({why})" if why else "") + ": whatever else is refused when it is served"
        )  # fmt: skip
    return Finding("guessed-range", "limit", message, _REMEDY.format(spec.name), "delivery.toml")


def _check_table_bounds(
    delivery: LoadedDelivery, inputs: Tensors, index: int, reading: RangeReading
) -> Finding | None:
    """Return the finding of ids that no table has, where the model fails on them indeed."""
    spec = delivery.contract.inputs[index]
    assert spec.low is not None
    assert spec.high is not None
    if reading.source != "table" or (reading.low <= spec.low and spec.high <= reading.high):
        return None
    end = spec.high if spec.high > reading.high else spec.low
    info = torch.iinfo(inputs[index].dtype)
    changed = list(inputs)
    changed[index] = torch.full_like(inputs[index], min(max(int(end), info.min), info.max))
    try:
        call(delivery.module, tuple(changed))
    except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is the finding
        return Finding(
            "ids-beyond-table",
            "unsound",
            f"{spec.name} may be {end:.0f} by the contract, and the model takes {reading.low:.0f} "
            f"to {reading.high:.0f} ({reading.text}): {summarize_export_error(error)}",
            _REMEDY.format(spec.name),
            "delivery.toml",
        )
    return None


def _check_narrow_range(
    spec: TensorSpec, low: float, high: float, reading: RangeReading
) -> Iterator[Finding]:
    """Find what is refused though the graph would take it, unless somebody said so."""
    if spec.origin == DECLARED:
        return
    if reading.source != "example" and (reading.low < low or high < reading.high):
        yield Finding(
            "narrow-range",
            "limit",
            f"{spec.name} takes {spec.values} by the contract, and the model {reading.low:.0f} to "
            f"{reading.high:.0f} ({reading.text}): the others are refused when it is served",
            _REMEDY.format(spec.name),
            "delivery.toml",
        )
    elif reading.narrowed or reading.widened:
        how = ("what other columns could take beyond is refused" if reading.narrowed else
               "what a narrower column can't take is not refused by the contract")  # fmt: skip
        yield Finding(
            "narrow-range",
            "limit",
            f"{spec.name} takes {spec.values}, {reading.text}, since a range is the same for all "
            f"columns: {how} when it is served",
            "Give each column an input of its own, or say what is served (ranges)",
            "delivery.toml",
        )
