"""One model in one precision: delivered, made in processes of its own, played in fresh ones."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch

from handoff.artifacts.recipe.compatibility import Fit
from handoff.tasks.verify.loading import SHARED_LIBRARY
from tests.studies.benchmarks.seeds.asked import (
    MakeJob,
    PlayJob,
    PlayResult,
    read_record,
    write_record,
)
from tests.studies.benchmarks.seeds.contestants import CROSS, ELSEWHERE, ONNX, from_files
from tests.studies.benchmarks.seeds.making import FIT_FILE, NotMade, make_apart, run_apart
from tests.studies.benchmarks.seeds.measured import Measurement
from tests.studies.benchmarks.seeds.subjects import Subject

_PLAYING_LIMIT_S = 7200.0


@dataclass(frozen=True)
class MeasureOptions:
    """What the command line asks for; `batch` 0 is each model's own.

    `packages` is a folder of packages that were cross-compiled beforehand (`prepare_package`).
    """

    device: str
    target: str
    runs: int
    batch: int
    processes: int
    without: tuple[str, ...] = ()
    packages: Path | None = None


@dataclass
class _Work:
    """A model in a precision, on its way."""

    subject: Subject
    precision: str
    options: MeasureOptions
    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.options.batch or self.subject.batch

    def make_job(self, contestant: str, to: Path) -> MakeJob:
        return MakeJob(
            contestant, self.subject.name, self.precision, self.batch, self.options.device,
            self.options.target, self.folder, to,
        )  # fmt: skip


def measure(subject: Subject, precision: str, options: MeasureOptions, folder: Path) -> Measurement:
    """Make everybody's files, and play the protocol in so many fresh processes.

    A process is faster or slower than another of the same program for as long as it lives: it is
    one observation, however many calls it has (`Ratio.across`). What `torch.compile` chooses in
    the first one is kept for the others, which would take as long again.
    """
    load = psutil.getloadavg()[0]
    work = _Work(subject, precision, options, folder)
    subject.deliver(precision, folder / "delivery")
    _make_all(work)
    if options.packages:
        _take_package(work, options.packages)
    played = [one for number in range(options.processes) if (one := _play(work, number))]
    missing = {**work.missing, **{k: v for one in played for k, v in one.missing.items()}}
    return Measurement(subject.name, work.batch, precision, options.device, options.runs, load,
                    tuple(played), missing)  # fmt: skip


def prepare_package(
    subject: Subject, precision: str, options: MeasureOptions, folder: Path
) -> Path:
    """Cross-compile the model here, for `packages` elsewhere; return the folder of its package.

    Raises `NotMade`.
    """
    package = _package_folder(subject.name, precision, options.target, folder)
    with tempfile.TemporaryDirectory(prefix="handoff-seeds-") as scratch:
        work = _Work(subject, precision, options, Path(scratch))
        subject.deliver(precision, work.folder / "delivery")
        library = work.folder / "made" / SHARED_LIBRARY
        make_apart(work.make_job(CROSS, library))
        package.mkdir(parents=True, exist_ok=True)
        for name in (SHARED_LIBRARY, FIT_FILE):
            shutil.copy2(library.with_name(name), package)
    return package


def _package_folder(model: str, precision: str, target: str, folder: Path) -> Path:
    return folder / f"{model}-{precision}-{target}"


def _make_all(work: _Work) -> None:
    """Make what serves from files: one after the other, and those that leave a GPU alone beside."""
    names = [name for name in from_files(work.options.device) if name not in work.options.without]
    alone = [name for name in names if work.options.device == "cuda" and name in (CROSS, ONNX)]
    groups = [[name for name in names if name not in alone], alone]
    with ThreadPoolExecutor(len(groups)) as pool:
        results = dict(
            pair for pairs in pool.map(partial(_make_some, work), groups) for pair in pairs
        )
    # In the order in which they are called.
    for name in names:
        if isinstance(found := results[name], Path):
            work.files[name] = found
        else:
            work.missing[name] = found


def _make_some(work: _Work, names: list[str]) -> list[tuple[str, Path | str]]:
    """Return the file of each, or why it couldn't be made."""
    results: list[tuple[str, Path | str]] = []
    for name in names:
        to = work.folder / re.sub(r"\W+", "-", name) / SHARED_LIBRARY
        try:
            make_apart(work.make_job(name, to))
        except NotMade as failure:
            results.append((name, str(failure)))
        else:
            results.append((name, to))
    return results


def _take_package(work: _Work, packages: Path) -> None:
    """Let the package that was made beforehand take part, where it fits this machine."""
    found = _package_folder(work.subject.name, work.precision, work.options.target, packages)
    if not (found / SHARED_LIBRARY).exists():
        work.missing[ELSEWHERE] = f"there is no {found / SHARED_LIBRARY}"
    elif misfit := read_record(Fit, found / FIT_FILE).misfit(torch.__version__):
        work.missing[ELSEWHERE] = misfit
    else:
        work.files[ELSEWHERE] = found / SHARED_LIBRARY


def _play(work: _Work, number: int) -> PlayResult | None:
    """Play the protocol in a fresh process; who ends it while being opened is left out then."""
    options, to = work.options, work.folder / f"played-{number}.json"
    # The same for all of a model's processes: what was tuned once isn't again.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(work.folder / "cache")}
    while True:
        without = (*options.without, *work.missing)
        job = PlayJob(work.subject.name, work.precision, work.batch, options.runs, options.device,
                      work.folder, work.files, without, to)  # fmt: skip
        record = to.with_suffix(".job.json")
        write_record(record, job)
        try:
            run_apart(
                "tests.studies.benchmarks.seeds.playing", record, environment, _PLAYING_LIMIT_S
            )
        except NotMade as failure:
            if not job.opening.exists():
                work.missing[f"process {number + 1}"] = str(failure)
                return None
            work.missing[job.opening.read_text(encoding="utf-8")] = str(failure)
            job.opening.unlink()
        else:
            return read_record(PlayResult, to)
