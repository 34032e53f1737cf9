"""Has a release tried in a confined process before this one opens it: a crash is an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from handoff.artifacts.errors import BudgetSpent, PackageRefused, StepCrashed
from handoff.artifacts.release.signing import Trust
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.follow.messages import TryReleaseJob

# Compiled code runs there: no store's credentials, no key, no network.
_TRIER = ProcessPlan("try-release", preload=("follow.trial",))


def write_keys(trust: Trust, folder: Path) -> tuple[str, ...]:
    """Write the trusted public keys into a new folder as PEM; return their places."""
    folder.mkdir()
    places = []
    for number, key in enumerate(trust.keys):
        place = folder / f"{number}.pub"
        place.write_text(key.keyval["public"], encoding="ascii")
        places.append(str(place))
    return tuple(places)


def try_release(
    job: TryReleaseJob, scratch: Path, started: Callable[[StepProcess | None], None]
) -> None:
    """Run the job in a process that reads the pulled folder and the keys alone.

    `started` is told of the process, so that it can be ended, and of its end (None). Raises
    `PackageRefused` for a release that is refused there or ends the process, and `BudgetSpent`
    where it took more time or memory than there is.
    """
    reads = (job.folder, *map(Path, job.keys))
    plan = ProcessPlan(_TRIER.name, preload=_TRIER.preload, reads=reads)
    process = StepProcess(plan, scratch / "try-release.log")
    started(process)
    try:
        process.run(job)
    except BudgetSpent:
        raise
    except StepCrashed as error:
        raise PackageRefused(
            f"{job.model} version {job.version} ends the process that opens or calls it",
            expected="a package that answers", got=error.got.partition("; its last output")[0],
            remedy="Roll back, and run 'handoff verify' on the pulled folder to see it again",
        ) from error  # fmt: skip
    finally:
        process.close()
        started(None)
