"""Reads a `torch.fx` delivery without executing or unpickling anything that it brings."""

from __future__ import annotations

from handoff.tasks.intake.examples import ExampleCase
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery, take_in

run = take_in

__all__ = ["ExampleCase", "LoadedDelivery", "read_delivery", "run", "take_in"]
