"""What was measured of a package, kept for later packages of the same code.

How fast a package is, how much memory it holds and what it does with hostile inputs depends on its
code, and hardly on the values of its weights, so that a release of a model that was trained on
takes that over for a month instead of measuring it again, and says so. Its numbers are compared
again, in Python and without. Like the compile cache this is a folder of the machine's own; what
can't be read there, or wouldn't be accepted, counts as none.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from handoff.artifacts.delivery.contract import MODULE_FILE, code_without_folder
from handoff.artifacts.digest import Digest, digest_bytes, digest_folder
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import keep_newest, write_atomically
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.artifacts.release.evidence import EarlierMeasurement, Timing
from handoff.artifacts.release.mechanics import Mechanics
from handoff.tasks.compile.fingerprint import digest_own_code
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.probe.verdict import judge_calls, judge_measures
from handoff.tasks.verify.messages import ReferenceResult

# Some tens of kilobytes each; those that were used last are kept.
_MOST_ENTRIES = 1000
# What a machine does changes in ways that nothing here can see: firmware, neighbours.
_MAX_AGE = timedelta(days=30)


@dataclass(frozen=True)
class CachedMeasurements:
    """What was found out of an accepted package, and which one that was."""

    package: EarlierMeasurement
    mechanics: Mechanics
    timings: tuple[Timing, ...]


def measuring_key(
    probing: ProbeJob, compiled: CompileResult, reference: ReferenceResult, staging: Path
) -> Digest | None:
    """Return the digest of all that is measured of a package depends on; None where it can't be.

    That is the package's code and the sizes that it is called with, eager's graph, recipe, limits,
    the runner and all of our own code, and the conditions under which it runs. Where the graph
    calls operators that are not torch's own, or for a GPU, nothing shows whether code is the same.
    """
    if not compiled.code or not reference.conditions:
        return None
    try:
        code = code_without_folder((staging / MODULE_FILE).read_bytes())
        eager, runner = code.decode("utf-8"), digest_folder(probing.source)
    except OSError:
        return None
    inputs = {
        "code": compiled.code,
        "fit": to_plain(compiled.fit),
        "signature": to_plain(probing.signature),
        "recipe": to_plain(probing.recipe),
        "limits": to_plain(probing.limits),
        "inputs": [*reference.cases, *reference.skipped],
        "eager": eager,
        "runner": runner,
        "own code": digest_own_code(),
        "conditions": reference.conditions,
    }
    return digest_bytes(json.dumps(inputs, sort_keys=True).encode())


def load_measurements(folder: Path, key: Digest | None) -> CachedMeasurements | None:
    """Return what was kept under `key` for at most 30 days; None where there is no such thing.

    Nor is what doesn't show all that a release has to be accepted for.
    """
    if key is None:
        return None
    file = _entry_path(folder, key)
    try:
        entry = from_plain(CachedMeasurements, parse_json(file.read_bytes()))
        age = datetime.now(UTC) - datetime.fromisoformat(entry.package.measured)
        file.touch()
    except (OSError, ValueError, TypeError, RecursionError, RecordInvalid):
        return None
    is_complete = entry.timings and not judge_calls(entry.mechanics)
    is_complete = is_complete and not judge_measures(entry.mechanics)
    return entry if is_complete and timedelta(0) <= age < _MAX_AGE else None


def store_measurements(folder: Path, key: Digest | None, measured: CachedMeasurements) -> None:
    """Keep what was measured, whole or not at all, in the place of what is there."""
    if key is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(_entry_path(folder, key), json.dumps(to_plain(measured)))
        keep_newest(folder, _MOST_ENTRIES)


def record_measurements(
    compiled: CompileResult, mechanics: Mechanics, timings: tuple[Timing, ...]
) -> CachedMeasurements:
    """Return what has just been measured of a package."""
    measured = datetime.now(UTC).isoformat(sep=" ", timespec="minutes")
    return CachedMeasurements(
        EarlierMeasurement(compiled.library.digest, measured), mechanics, timings
    )


def _entry_path(folder: Path, key: Digest) -> Path:
    return folder / f"{key.hex}.json"
