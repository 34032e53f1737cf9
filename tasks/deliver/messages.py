"""What making and writing a delivery is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.record import Job

# What forward is called with: its arguments in their order, or by their names.
Arguments = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class PrepareJob(Job["Prepared"]):
    """Make the model that `factory` (`module:function`) returns, for the `DeliverJob` that follows.

    `search_path` is where the module is looked for first. `folder` is where it is to go. With
    `reads_ranges`, the model is run to see which inputs' ranges have to be guessed. What the
    factory prints is written to the file `prints`, where one is named.
    """

    factory: str
    search_path: Path
    folder: Path
    reads_ranges: bool = False
    prints: Path | None = None


@dataclass(frozen=True)
class Prepared:
    """The model's name, and whose name it is; the inputs whose ranges are guessed.

    `is_chosen` says that the factory names the model, and not that it was named after something.
    """

    name: str
    named_by: str
    guessed: tuple[TensorSpec, ...] = ()
    is_chosen: bool = False


@dataclass(frozen=True)
class DeliverJob(Job["DeliverResult"]):
    """Make the model that `factory` (`module:function`) returns, and deliver it to `folder`.

    `search_path` is where the module is looked for first. An empty `name` leaves the factory's.
    `ranges` are the lowest and the highest value of inputs that a person was asked for.
    """

    factory: str
    search_path: Path
    folder: Path
    name: str = ""
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class DeliverResult:
    """The delivery that was written, and what its reader should know about it."""

    folder: Path
    contract: DeliveryContract
    notes: tuple[str, ...] = ()
