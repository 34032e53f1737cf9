"""How long the steps of earlier releases took on this machine: what a wait is measured by.

One small JSON file for each model, in a folder of its own below the home folder. It is a courtesy
and nothing rests on it: a file that is damaged or can't be written counts as none.
"""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.writing import keep_newest, write_atomically
from handoff.artifacts.release.manifest import Manifest
from handoff.flows.progress import LOGGER
from handoff.infra.settings import Settings

Times = dict[str, tuple[float, ...]]

# The whole command, from its start to its end.
WHOLE_RELEASE = "release"
_RUNS_KEPT = 5  # times of each step
_MAX_STEPS = 200  # steps of each model, of which a target has about ten
_MAX_MODELS = 500
_MAX_BYTES = 1 << 18
_MAX_STEP_S = 1e6
# What a target takes from the compile cache is another matter than what is compiled.
CACHED_STEP = "{step}, from the cache"
# Nor is a release that is timed the same as one whose timings are taken over.
KNOWN_CODE_STEP = "{step}, of known code"


class StepTimes:
    """The times of a model's steps, as they were when this was made."""

    def __init__(self, times: Times) -> None:
        """Hold the seconds of each step's last runs, oldest first."""
        self._times = times

    def expected(self, step: str) -> float | None:
        """Return the median of a step's last times in seconds; None where it never ran here."""
        times = self._times.get(step)
        return statistics.median(times) if times else None

    def medians(self) -> dict[str, float]:
        """Return the median of each step's last times, in seconds."""
        return {step: statistics.median(times) for step, times in self._times.items() if times}


def times_folder(settings: Settings) -> Path:
    """Return the folder of all models' times."""
    return settings.home / "times"


def read_times(folder: Path, model: str) -> StepTimes:
    """Return what is known of the model's steps; nothing where no file of it can be read."""
    return StepTimes(_read(_times_file(folder, model)))


def keep_times(folder: Path, model: str, seconds: Mapping[str, float]) -> None:
    """Add one time for each step to what is known; the oldest go."""
    if not seconds:
        return
    file = _times_file(folder, model)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_folder(folder):
            times = _read(file)
            for step, took_s in seconds.items():
                # At the end, where the steps are that ran last.
                times[step] = (*times.pop(step, ()), round(took_s, 3))[-_RUNS_KEPT:]
            write_atomically(file, json.dumps(dict(list(times.items())[-_MAX_STEPS:])))
            keep_newest(folder, _MAX_MODELS)


def label_times(manifest: Manifest, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a release's times by names that part what was made from what was there already."""
    forms = {f"compile {target.slug}": CACHED_STEP for target in manifest.targets if target.reused}
    forms |= {
        f"probe {target.slug}": KNOWN_CODE_STEP for target in manifest.targets if target.taken_over
    }
    if forms:
        forms[WHOLE_RELEASE] = KNOWN_CODE_STEP if KNOWN_CODE_STEP in forms.values() else CACHED_STEP
    return {forms.get(s, "{step}").format(step=s): took_s for s, took_s in seconds.items()}


@contextmanager
def record_times() -> Iterator[dict[str, float]]:
    """Give what fills with the seconds of each step that is done while the body runs."""
    seconds: dict[str, float] = {}
    handler = _TimesHandler(seconds)
    LOGGER.addHandler(handler)
    began = time.monotonic()
    try:
        yield seconds
        seconds[WHOLE_RELEASE] = time.monotonic() - began
    finally:
        LOGGER.removeHandler(handler)


class _TimesHandler(logging.Handler):
    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__()
        self._seconds = seconds

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "phase", "") == "done":
            fields = record.__dict__
            # A step that runs again, for a search's variants, counts with all its runs.
            step = fields["step"]
            self._seconds[step] = self._seconds.get(step, 0.0) + fields["seconds"]


def _times_file(folder: Path, model: str) -> Path:
    # A model's name is one path component (`artifacts.delivery.contract.require_model_name`).
    return folder / f"{model}.json"


def _read(file: Path) -> Times:
    try:
        with file.open("rb") as stream:
            plain = json.loads(stream.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(plain, dict):
        return {}
    return {step: times for step, values in plain.items() if (times := _valid_times(values))}


def _valid_times(values: object) -> tuple[float, ...]:
    """Return the times that make sense among what a file holds for a step."""
    if not isinstance(values, list):
        return ()
    return tuple(
        float(took_s)
        for took_s in values[-_RUNS_KEPT:]
        if type(took_s) in (int, float) and 0 <= took_s < _MAX_STEP_S
    )
