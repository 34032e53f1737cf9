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

from handoff.artifacts.files.locks import held
from handoff.artifacts.files.writing import keep_newest, write_whole
from handoff.artifacts.release.manifest import Manifest
from handoff.flows.progress import LOGGER
from handoff.infra.settings import Settings

Times = dict[str, tuple[float, ...]]

# The whole command, from its start to its end.
WHOLE = "release"
_KEPT = 5  # times of each step
_STEPS = 200  # steps of each model, of which a target has about ten
_MODELS = 500
_MAX_BYTES = 1 << 18
_LONGEST_S = 1e6
# What a target takes from the compile cache is another matter than what is compiled.
CACHED = "{step}, from the cache"
# Nor is a release that is timed the same as one whose timings are taken over.
KNOWN = "{step}, of known code"


class StepTimes:
    """The times of a model's steps, as they were when this was made."""

    def __init__(self, times: Times) -> None:
        """Hold the seconds of each step's last runs, oldest first."""
        self._times = times

    def expected(self, step: str) -> float | None:
        """Return the median of a step's last times in seconds; None where it never ran here."""
        known = self._times.get(step)
        return statistics.median(known) if known else None

    def medians(self) -> dict[str, float]:
        """Return the median of each step's last times, in seconds."""
        return {step: statistics.median(known) for step, known in self._times.items() if known}


def times_folder(settings: Settings) -> Path:
    """Return the folder of all models' times."""
    return settings.home / "times"


def read_times(folder: Path, model: str) -> StepTimes:
    """Return what is known of the model's steps; nothing where no file of it can be read."""
    return StepTimes(_read(_file_of(folder, model)))


def keep_times(folder: Path, model: str, seconds: Mapping[str, float]) -> None:
    """Add one time for each step to what is known; the oldest go."""
    if not seconds:
        return
    file = _file_of(folder, model)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with held(folder):
            known = _read(file)
            for step, took_s in seconds.items():
                # At the end, where the steps are that ran last.
                known[step] = (*known.pop(step, ()), round(took_s, 3))[-_KEPT:]
            write_whole(file, json.dumps(dict(list(known.items())[-_STEPS:])))
            keep_newest(folder, _MODELS)


def times_of(manifest: Manifest, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a release's times under names that tell what was made from what was there already."""
    forms = {f"compile {target.slug}": CACHED for target in manifest.targets if target.reused}
    forms |= {f"probe {target.slug}": KNOWN for target in manifest.targets if target.taken_over}
    if forms:
        forms[WHOLE] = KNOWN if KNOWN in forms.values() else CACHED
    return {forms.get(s, "{step}").format(step=s): took_s for s, took_s in seconds.items()}


@contextmanager
def noted_times() -> Iterator[dict[str, float]]:
    """Give what fills with the seconds of each step that is done while the body runs."""
    noted: dict[str, float] = {}
    handler = _Notes(noted)
    LOGGER.addHandler(handler)
    began = time.monotonic()
    try:
        yield noted
        noted[WHOLE] = time.monotonic() - began
    finally:
        LOGGER.removeHandler(handler)


class _Notes(logging.Handler):
    def __init__(self, noted: dict[str, float]) -> None:
        super().__init__()
        self._noted = noted

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "phase", "") == "done":
            told = record.__dict__
            # A step that runs again, for a search's variants, counts with all its runs.
            step = told["step"]
            self._noted[step] = self._noted.get(step, 0.0) + told["seconds"]


def _file_of(folder: Path, model: str) -> Path:
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
    return {step: times for step, given in plain.items() if (times := _whole(given))}


def _whole(given: object) -> tuple[float, ...]:
    """Return the times that make sense among what a file holds for a step."""
    if not isinstance(given, list):
        return ()
    return tuple(
        float(took_s)
        for took_s in given[-_KEPT:]
        if type(took_s) in (int, float) and 0 <= took_s < _LONGEST_S
    )
