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
from tests.studies.benchmarks.seeds.asked import Making, Played, Playing, read_record, write_record
from tests.studies.benchmarks.seeds.contestants import CROSS, ELSEWHERE, ONNX, from_files
from tests.studies.benchmarks.seeds.making import FIT_FILE, NotMade, make_apart, run_apart
from tests.studies.benchmarks.seeds.measured import Measured
from tests.studies.benchmarks.seeds.subjects import Subject

_PLAYING_LIMIT_S = 7200.0


@dataclass(frozen=True)
class Asked:
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
    asked: Asked
    folder: Path
    files: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.asked.batch or self.subject.batch

    def making(self, contestant: str, to: Path) -> Making:
        return Making(contestant, self.subject.name, self.precision, self.batch, self.asked.device,
                      self.asked.target, self.folder, to)  # fmt: skip


def measure(subject: Subject, precision: str, asked: Asked, folder: Path) -> Measured:
    """Make everybody's files, and play the protocol in so many fresh processes.

    A process is faster or slower than another of the same program for as long as it lives: it is
    one observation, however many calls it has (`Ratio.across`). What `torch.compile` chooses in
    the first one is kept for the others, which would take as long again.
    """
    load = psutil.getloadavg()[0]
    work = _Work(subject, precision, asked, folder)
    subject.deliver(precision, folder / "delivery")
    _make_all(work)
    if asked.packages:
        _take_package(work, asked.packages)
    played = [one for number in range(asked.processes) if (one := _play(work, number))]
    missing = {**work.missing, **{k: v for one in played for k, v in one.missing.items()}}
    return Measured(subject.name, work.batch, precision, asked.device, asked.runs, load,
                    tuple(played), missing)  # fmt: skip


def prepare_package(subject: Subject, precision: str, asked: Asked, folder: Path) -> Path:
    """Cross-compile the model here, for `packages` elsewhere; return the folder of its package.

    Raises `NotMade`.
    """
    kept = _package_folder(subject.name, precision, asked.target, folder)
    with tempfile.TemporaryDirectory(prefix="handoff-seeds-") as scratch:
        work = _Work(subject, precision, asked, Path(scratch))
        subject.deliver(precision, work.folder / "delivery")
        made = work.folder / "made" / SHARED_LIBRARY
        make_apart(work.making(CROSS, made))
        kept.mkdir(parents=True, exist_ok=True)
        for name in (SHARED_LIBRARY, FIT_FILE):
            shutil.copy2(made.with_name(name), kept)
    return kept


def _package_folder(model: str, precision: str, target: str, folder: Path) -> Path:
    return folder / f"{model}-{precision}-{target}"


def _make_all(work: _Work) -> None:
    """Make what serves from files: one after the other, and those that leave a GPU alone beside."""
    names = [name for name in from_files(work.asked.device) if name not in work.asked.without]
    alone = [name for name in names if work.asked.device == "cuda" and name in (CROSS, ONNX)]
    groups = [[name for name in names if name not in alone], alone]
    with ThreadPoolExecutor(len(groups)) as pool:
        made = dict(pair for pairs in pool.map(partial(_make_some, work), groups) for pair in pairs)
    # In the order in which they are called.
    for name in names:
        if isinstance(found := made[name], Path):
            work.files[name] = found
        else:
            work.missing[name] = found


def _make_some(work: _Work, names: list[str]) -> list[tuple[str, Path | str]]:
    """Return the file of each, or why it couldn't be made."""
    made: list[tuple[str, Path | str]] = []
    for name in names:
        to = work.folder / re.sub(r"\W+", "-", name) / SHARED_LIBRARY
        try:
            make_apart(work.making(name, to))
        except NotMade as failure:
            made.append((name, str(failure)))
        else:
            made.append((name, to))
    return made


def _take_package(work: _Work, packages: Path) -> None:
    """Let the package that was made beforehand take part, where it fits this machine."""
    found = _package_folder(work.subject.name, work.precision, work.asked.target, packages)
    if not (found / SHARED_LIBRARY).exists():
        work.missing[ELSEWHERE] = f"there is no {found / SHARED_LIBRARY}"
    elif misfit := read_record(Fit, found / FIT_FILE).misfit(torch.__version__):
        work.missing[ELSEWHERE] = misfit
    else:
        work.files[ELSEWHERE] = found / SHARED_LIBRARY


def _play(work: _Work, number: int) -> Played | None:
    """Play the protocol in a fresh process; who ends it while being opened is left out then."""
    asked, to = work.asked, work.folder / f"played-{number}.json"
    # The same for all of a model's processes: what was tuned once isn't again.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(work.folder / "cache")}
    while True:
        without = (*asked.without, *work.missing)
        job = Playing(work.subject.name, work.precision, work.batch, asked.runs, asked.device,
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
            return read_record(Played, to)
