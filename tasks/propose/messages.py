"""What a bare folder's contract is proposed to be, and how it is tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.record import Job


@dataclass(frozen=True)
class ProposeJob(Job["ProposeResult"]):
    """Copy the bare folder `folder` to `staging` and propose its inputs; `given` ones are known."""

    folder: Path
    staging: Path
    given: tuple[TensorSpec, ...] = ()
    dimensions: dict[str, Dimension] = field(default_factory=dict)


@dataclass(frozen=True)
class InputProposal:
    """An input of forward: its spec as far as it could be inferred, and from what."""

    name: str
    spec: TensorSpec | None
    why: str


@dataclass(frozen=True)
class ProposeResult:
    """The model's class, its inputs and the ranges of their dynamic dimensions.

    `ran` says that the model was run on inputs like these.
    """

    class_name: str
    inputs: tuple[InputProposal, ...]
    dimensions: dict[str, Dimension]
    ran: bool


@dataclass(frozen=True)
class TryJob(Job["TryResult"]):
    """Run the staged model on inputs as `contract` declares them."""

    staging: Path
    contract: DeliveryContract


@dataclass(frozen=True)
class TryResult:
    """The sizes at which the model failed, each with its reason; empty where it ran."""

    failures: tuple[str, ...]
