"""Why no road led to a delivery, as the one sentence that helps most."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from artifacts.delivery import DeliveryContract
from artifacts.errors import DeliveryUnreadable, DeliveryUnsound, HandoffError
from tasks.delivering.golden import one_line


@dataclass(frozen=True)
class Failure:
    """Why a road didn't lead to a delivery, and whether it led to a graph at least."""

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
    """Return the note on a delivery that holds for the example's sizes alone."""
    taken = contract.signature.measure(
        {spec.name: tuple(t.shape) for spec, t in zip(contract.inputs, inputs, strict=True)}
    )
    sizes = ", ".join(f"{name} = {size}" for name, size in taken.items())
    return (
        f"takes {sizes} alone, as in the example, since no capture holds for other sizes: "
        f"{_told(failures[-1].error)}"
    )


def _told(error: Exception) -> str:
    return f"{error.what}: {error.got}" if isinstance(error, HandoffError) else one_line(error)


def gravest(module: nn.Module, failures: Sequence[Failure]) -> HandoffError:
    """Return the refusal to raise: of a wrong graph, else of an unreadable folder, else of all."""
    found = [failure.error for failure in failures if failure.captured]
    for kind in (DeliveryUnsound, DeliveryUnreadable):
        for error in found:
            if isinstance(error, kind):
                return error
    # The road's own sentence adds nothing here to what torch said.
    causes = [failure.error.__cause__ or failure.error for failure in failures]
    places = [own_line(module, cause) for cause in causes]
    where, text = next((place for place in places if place[1]), places[0])
    reasons = dict.fromkeys(one_line(cause).partition(". ")[0] for cause in causes)
    return DeliveryUnreadable(
        f"{type(module).__name__} can't be captured as a graph",
        expected="a model that torch.fx or torch.export can capture",
        got=(f"`{text}`: " if text else "") + "; ".join(list(reasons)[:2]),
        remedy="Take Python control flow on tensor values, len(tensor) and .item() out of the "
        "forward (torch.where and x.shape do the same)",
        where=where,
    )


def own_line(module: nn.Module, error: BaseException) -> tuple[str, str]:
    """Return where the model's own code raised `error` (`file.py:12`), and that line's text.

    It is the innermost line in a file that defines a class of the model's; without one, the place
    is that of the model's class and the text is empty.
    """
    files = {_source_file(part) for part in module.modules()} - {""}
    files = {file for file in files if Path(torch.__file__).parent not in Path(file).parents}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files and frame.lineno is not None:
            text = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{Path(frame.filename).name}:{frame.lineno}", text
    return Path(_source_file(module)).name, ""


def _source_file(module: nn.Module) -> str:
    try:
        return inspect.getsourcefile(type(module)) or ""
    except (TypeError, OSError):
        return ""
