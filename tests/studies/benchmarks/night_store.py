"""A store of many models, each released and promoted by the real steps; packages of a few bytes."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.digest import digest_folder
from handoff.infra.settings import compiler_name
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.nightly.messages import Survey, SurveyJob
from handoff.tasks.registry.changes import PromoteRequest
from tests.tasks.registry.registering import SomeRegistry, some_registry


def model_names(count: int) -> tuple[str, ...]:
    """Return the names of the models."""
    return tuple(f"model-{number:05}" for number in range(count))


def fill_store(home: Path, count: int, *, unchanged: bool) -> SomeRegistry:
    """Release and promote `count` models in a new home; return its registry.

    `unchanged` ones are what today's toolchain would make again; of the others it has changed.
    """
    registry = some_registry(home)
    delivery = home / "delivery"
    delivery.mkdir()
    (delivery / "delivery.toml").write_text("# what stands for a delivery\n")
    for model in model_names(count):
        manifest, folder = registry.write(model=model)
        manifest = replace(manifest, delivery=digest_folder(delivery))
        if unchanged:
            today = fingerprint_release(manifest.delivery, manifest.recipe, compiler_name())
            manifest = replace(manifest, fingerprint=today)
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
        registry.register(manifest, folder, delivery=delivery)
        registry.change(PromoteRequest(model, 1, "production"))
    return registry


def timed_survey(registry: SomeRegistry, models: tuple[str, ...] = ()) -> tuple[Survey, float]:
    """Return what the real survey says, and its seconds in this process."""
    survey = importlib.import_module("handoff.tasks.nightly.survey")
    job = SurveyJob(
        registry.stores, "production", registry.root.parent / "recipes", compiler_name(), models
    )
    began = time.monotonic()
    found: Survey = survey.run(job)
    return found, time.monotonic() - began
