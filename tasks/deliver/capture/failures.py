"""Why no road led to a delivery, as the one sentence that helps most."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.errors import DeliveryUnreadable, DeliveryUnsound, HandoffError
from handoff.tasks.deliver.capture.export_obstacles import BY_VALUE, obstacle_of
from handoff.tasks.deliver.capture.lines import Line, is_outside
from handoff.tasks.deliver.golden import one_line

# It is tried first since its graphs are the ones that people read, and it captures least.
FIRST_ROAD = "torch.fx"


@dataclass(frozen=True)
class Failure:
    """Why a road didn't lead to a delivery, and whether it led to a graph at least."""

    road: str
    error: Exception
    captured: bool


def describe_detour(road: str, failures: Sequence[Failure]) -> tuple[str, ...]:
    """Return a note on why the first road wasn't taken, if it wasn't."""
    if not failures:
        return ()
    return (f"captured by {road}, since torch.fx didn't do: {_told(failures[0].error)}",)


def describe_fixing(
    contract: DeliveryContract, inputs: Sequence[torch.Tensor], failures: Sequence[Failure]
) -> str:
    """Return the note on a delivery that holds for the example's sizes alone.

    `inputs` are the example's, of the contract's shapes; nothing is asked of their dtypes.
    """
    taken = contract.signature.measure(
        {spec.name: tuple(t.shape) for spec, t in zip(contract.inputs, inputs, strict=True)}
    )
    sizes = ", ".join(f"{name} = {size}" for name, size in taken.items())
    return (
        f"takes {sizes} alone, as in the example, since no capture holds for other sizes: "
        f"{_told(failures[-1].error)}"
    )


def _told(error: Exception) -> str:
    if not isinstance(error, HandoffError):
        return one_line(error)
    place = f"{error.where}: " if error.where else ""
    return f"{place}{error.what}: {error.got}"


def gravest(module: nn.Module, failures: Sequence[Failure]) -> HandoffError:
    """Return the refusal to raise: of a wrong graph, else of an unreadable folder, else of all."""
    found = [failure.error for failure in failures if failure.captured]
    for kind in (DeliveryUnsound, DeliveryUnreadable):
        for error in found:
            if isinstance(error, kind):
                return error
    # What torch.fx stops at is no obstacle: torch.export has to go on, and goes further.
    exports = [failure for failure in failures if failure.road != FIRST_ROAD] or list(failures)
    files = {_source_file(part) for part in module.modules()} - {""}
    files = {file for file in files if is_outside(file)}
    # The road's own sentence adds nothing here to what torch said.
    obstacles = [obstacle_of(one.error.__cause__ or one.error, files) for one in exports]
    # One that is known for what it is, and has a line, tells most.
    told = max(obstacles, key=lambda one: (bool(one.what), one.line is not None))
    where, text = _shown(module, told.line)
    got = (f"`{text}`: " if text else "") + told.got
    return DeliveryUnreadable(
        f"{type(module).__name__} can't be captured as a graph"
        + (f", because {told.what}" if told.what else ""),
        expected="a model that torch.export can capture",
        got=got,
        remedy=told.remedy or BY_VALUE,
        where=where,
    )


def _shown(module: nn.Module, line: Line | None) -> tuple[str, str]:
    """Return a line as `file.py:12`, and its text; the file of the model's class without one."""
    if line is None:
        return Path(_source_file(module)).name, ""
    return f"{Path(line[0]).name}:{line[1]}", linecache.getline(*line).strip()


def _source_file(module: nn.Module) -> str:
    try:
        return inspect.getsourcefile(type(module)) or ""
    except (TypeError, OSError):
        return ""
