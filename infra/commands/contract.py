"""Prints a delivery's contract: what a package of it will take, and where each bound comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.infra.terminal.console import fitted, print_table
from handoff.infra.terminal.echoing import echo

_SAY = "ranges={{'{0}': (LOW, HIGH)}}"


def print_contract(contract: DeliveryContract) -> None:
    """Print the inputs as a table, and what is drawn where nothing was declared."""
    columns = ("input", "dtype", "sizes", "values", "values come from")
    rows = [_row(spec, contract.dimensions) for spec in contract.inputs]
    print_table("", columns, rows)
    for name, limits in contract.dimensions.items():
        came = f", {limits.origin}" if limits.origin else ""
        echo(f"  {name}: {limits.min} to {limits.max}{came}")
    for line in _draws(contract):
        echo(f"  {fitted(line, 2)}")


def _row(spec: TensorSpec, dimensions: Mapping[str, Dimension]) -> tuple[str, ...]:
    return spec.name, spec.dtype, _sizes(spec, dimensions), _values(spec), _origin(spec)


def _sizes(spec: TensorSpec, dimensions: Mapping[str, Dimension]) -> str:
    """Return the axes with the bounds of those that may change: `batch (1 to 1024) x 20`."""
    told = [
        f"{axis} ({dimensions[axis].min} to {dimensions[axis].max})"
        if isinstance(axis, str) else str(axis)
        for axis in spec.shape
    ]  # fmt: skip
    return " x ".join(told) or "scalar"


def _values(spec: TensorSpec) -> str:
    if spec.dtype == "bool":
        return "true or false"
    return spec.values or "any"


def _origin(spec: TensorSpec) -> str:
    return spec.origin or ("" if spec.low is None else "not recorded")


def _draws(contract: DeliveryContract) -> Iterator[str]:
    """Tell what floating-point inputs are verified with, and how to say it better."""
    floats = [spec for spec in contract.inputs if spec.is_unlimited]
    if contract.draw == "examples":
        yield "inputs to verify with are rows of the example"
    elif floats:
        names = ", ".join(spec.name for spec in floats)
        yield (
            f"to verify with, {names} will be drawn from a standard normal distribution, and get "
            f"NaN, infinities and very large numbers; {_SAY.format(floats[0].name)} says what is "
            "served, and that alone is drawn"
        )
