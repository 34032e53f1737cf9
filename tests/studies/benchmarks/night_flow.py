"""One model of a simulated night: the real Prefect tasks, whose steps sleep instead of working.

The server sees what it sees of a real rebuild: the same flow, tasks, states, logs and events, and
the row is kept by the real step. What is missing is the work: each step's process is replaced by a
sleep of its recorded seconds, divided by `HANDOFF_BENCH_FASTER`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from prefect import flow, task

from handoff.artifacts.host import HostSettings
from handoff.artifacts.night import NightRow
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.record import to_plain
from handoff.flows import policies, steps
from handoff.flows.host import host_settings
from handoff.flows.parameters import Attempt, RebuildParameters
from handoff.infra.engine.child import StepProcess
from handoff.tasks.nightly.messages import NoteRowsJob
from handoff.tasks.registry.transitions import open_registrar
from tests.artifacts.nights import compared, figures
from tests.tasks.registry.registering import Here

FASTER = "HANDOFF_BENCH_FASTER"
# Set where many runs share a process: then the row is kept in it, too.
SHARED = "HANDOFF_BENCH_SHARED"

# Seconds of the steps of a rebuild for one target, in the order in which
# `flows.nightly.recompile` and `flows.releasing` run them: those of ResNet-18 in
# docs/performance.md, "A release of ResNet-18 against a bare script", the column "full". Where
# it has several steps together they are parted by what they took before. What a rebuild has beyond
# that table is rounded to what such steps take on two idle cores: restore, pull, three_way and the
# second append and catalogue.
RECORDED_S: tuple[tuple[str, float], ...] = (
    ("restore", 0.6),
    ("open_key", 0.1),
    ("take_in", 0.6),
    ("look_up", 0.1),
    ("inspect", 2.4),
    ("optimize", 6.0),
    ("compile_package", 12.5),
    ("run_reference", 15.3),
    ("verify", 2.8),
    ("probe", 14.5),
    ("measure", 10.2),
    ("benchmark", 17.7),
    ("upload", 1.0),
    ("append", 0.2),
    ("catalogue", 2.7),
    ("pull", 0.5),
    ("pull", 0.5),
    ("pull", 0.5),
    ("pull", 0.5),
    ("three_way", 9.0),
    ("append", 0.2),
    ("catalogue", 2.0),
)
# The compiler runs beside the reference, which takes longer, and key and look-up beside others.
_SUBMITTED = {"open_key", "look_up", "compile_package"}
_WITH_SLUG = {"compile_package", "verify", "probe", "measure", "benchmark", "three_way"}


def some_parameters(model: str) -> dict[str, Any]:
    """Return the parameters of a model's run, as large as real ones."""
    plain = to_plain(Recipe())
    parameters = RebuildParameters(model=model, version=1, night="20261121T020000Z", recipe=plain,
                             changed=["torch 2.14.0 is now 2.15.0"])  # fmt: skip
    return {"parameters": parameters.model_dump(mode="json")}


def recorded_seconds() -> float:
    """Return what a rebuild's steps take together, where nothing waits."""
    return sum(seconds for name, seconds in RECORDED_S if name not in _SUBMITTED)


@dataclass(frozen=True)
class Sleeper:
    """Stands for a step process: a job is the number of seconds that it takes."""

    faster: float

    def run(self, job: float, *, limit_s: float | None = None) -> None:
        """Sleep as long as the step took, less by the factor."""
        time.sleep(job / self.faster)

    def seconds(self, job: float) -> float:
        """Return what the step is said to have taken."""
        return job / self.faster


class _Here(Here):
    """Runs the real step in this process."""

    def seconds(self, job: object) -> float | None:
        """Return nothing, which leaves the time to whoever asks."""


@task(**policies.step("sign and append"))
def append(process: Sleeper, seconds: float) -> None:
    """Take the place of the task that signs, which asks two processes in turns."""
    process.run(seconds)


@flow(**policies.RECOMPILE_MODEL)
def recompile_model(parameters: RebuildParameters, attempt: Attempt = 1) -> dict[str, Any]:
    """Sleep through a rebuild, and keep the model's row of the night."""
    began = time.monotonic()
    settings, sleeper = host_settings(), Sleeper(float(os.environ[FASTER]))
    futures = []
    for name, seconds in RECORDED_S:
        if name == "append":
            append(sleeper, seconds)
            continue
        step = getattr(steps, name)
        arguments = [sleeper, seconds, *([native_cpu_target().slug] if name in _WITH_SLUG else [])]
        if name in _SUBMITTED:
            futures.append(step.submit(*arguments))
        else:
            step(*arguments)
    for future in futures:
        future.result()
    row = compared("replaced", figures(1, 1.4), figures(2, 1.5), "better", parameters.model)
    if int(parameters.model[-1]):
        # Each row with figures has its trend drawn in the end, which is measured apart.
        row = replace(row, comparisons=())
    with _registrar(settings) as registrar:
        steps.note_rows(registrar, NoteRowsJob(settings.stores, parameters.night, (row,)))
    return {**_plain(row), "seconds": time.monotonic() - began}


def _plain(row: NightRow) -> dict[str, Any]:
    return cast(dict[str, Any], to_plain(row))


@contextmanager
def _registrar(settings: HostSettings) -> Iterator[StepProcess]:
    if os.environ.get(SHARED):
        yield cast(StepProcess, _Here())
    else:
        with open_registrar(settings) as (registrar, _):
            yield registrar
