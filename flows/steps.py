"""The steps as Prefect tasks: each hands its job to a step process and waits for the answer.

A task is made from the step's row (`tasks.steps`), which says what it is called and how long it
may take; what more than one step takes part in is written out.
"""

from __future__ import annotations

from typing import Any, TypeVar

from prefect import Task, task

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.host import HostSettings
from handoff.artifacts.record import Job
from handoff.flows import policies
from handoff.flows.progress import announce_step
from handoff.infra.engine.child import StepProcess
from handoff.tasks import steps
from handoff.tasks.captures.rows import fill_rows
from handoff.tasks.compile.arm.emulation import EMULATION_SLOWDOWN, emulated_target
from handoff.tasks.compile.messages import CompileJob, CompileResult
from handoff.tasks.conformance.messages import SignTableJob
from handoff.tasks.conformance.running import Plan, ProgressCallback, make_table
from handoff.tasks.localize.messages import LocalizeJob, LocalizeResult
from handoff.tasks.registry.append import AppendResult, Change
from handoff.tasks.registry.append import append as append_change
from handoff.tasks.release.jobs import Jobs
from handoff.tasks.steps import Step

J = TypeVar("J", bound=Job[Any])
R = TypeVar("R")
T = TypeVar("T")


def _make_task(row: Step[J, R]) -> Task[[StepProcess, J], R]:
    """Return the task of a step that is run once in a release."""

    def run(process: StepProcess, job: J) -> R:
        result: R = _run_step(process, job, row.name)
        return result

    return task(_set_name(run, row), **policies.step(row.name))


def most_seconds(row: Step[Any, Any], slug: str) -> float:
    """Return how long a step of a target may take: longer where an emulator runs its packages."""
    return row.limit_s * (EMULATION_SLOWDOWN if emulated_target(slug) else 1)


def _make_target_task(row: Step[J, R]) -> Task[[StepProcess, J, str], R]:
    """Return the task of a step that is run for each target, whose slug is given."""

    def run(process: StepProcess, job: J, slug: str) -> R:
        result: R = _run_step(process, job, f"{row.name} {slug}", limit_s=most_seconds(row, slug))
        return result

    return task(_set_name(run, row), **policies.target_step(row.name))


def _set_name(run: T, row: Step[Any, Any]) -> T:
    """Name the function for Prefect, which distinguishes tasks by it."""
    run.__name__ = run.__qualname__ = row.name.replace(" ", "_")  # type: ignore[attr-defined]
    return run


def _run_step(
    process: StepProcess, job: Job[R], label: str, *, limit_s: float | None = None, bound: str = ""
) -> R:
    """Announce the step, and return its result with the seconds that it took where it ran."""
    with announce_step(label, bound, steps.step_of(job).does) as announcement:
        done = process.submit(job, limit_s=limit_s).result()
        announcement.seconds = done.seconds
    return done.result


fetch = _make_task(steps.FETCH)
send = _make_task(steps.SEND)
receive = _make_task(steps.RECEIVE)
take_in = _make_task(steps.TAKE_IN)
inspect = _make_task(steps.INSPECT)
optimize = _make_task(steps.OPTIMIZE)
run_reference = _make_task(steps.REFERENCE)
tap = _make_target_task(steps.TAP)
verify = _make_target_task(steps.VERIFY)
make_torch = _make_target_task(steps.MAKE_TORCH)
interpret = _make_target_task(steps.INTERPRET)
probe = _make_target_task(steps.PROBE)
measure = _make_target_task(steps.MEASURE)
benchmark = _make_target_task(steps.BENCHMARK)
race = _make_target_task(steps.RACE)
three_way = _make_target_task(steps.COMPARE)
open_key = _make_task(steps.OPEN_KEY)
look_up = _make_task(steps.LOOK_UP)
upload = _make_task(steps.UPLOAD)
catalogue = _make_task(steps.CATALOGUE)
restore = _make_task(steps.RESTORE)
pull = _make_task(steps.PULL)
records = _make_task(steps.RECORDS)
survey = _make_task(steps.SURVEY)
note_rows = _make_task(steps.NOTE_ROWS)
read_rows = _make_task(steps.READ_ROWS)
show_night = _make_task(steps.SHOW_NIGHT)
show_refused = _make_task(steps.SHOW_REFUSED)
keep_table = _make_task(steps.KEEP_TABLE)
known_wrong = _make_task(steps.KNOWN_WRONG)
read_tables = _make_target_task(steps.READ_TABLES)


@task(**policies.target_step(steps.COMPILE.name))
def compile_package(
    process: StepProcess, job: CompileJob, slug: str, limit_s: float | None = None
) -> CompileResult:
    """Compile the captured program for one target; in `limit_s` seconds, where that is less."""
    return _run_step(process, job, f"compile {slug}", limit_s=limit_s)


@task(**policies.target_step(steps.LOCALIZE.name))
def localize(process: StepProcess, job: LocalizeJob, slug: str) -> LocalizeResult:
    """Find out where and why a refused package's numbers are wrong; its budget is announced."""
    return _run_step(process, job, f"localize {slug}", bound=job.budget)


@task(**policies.step(steps.CAPTURE.name))
def capture(jobs: Jobs) -> tuple[CaptureRow, ...]:
    """Fill the capture table: each technology in a process of its own, one after the other."""
    with announce_step("capture"):
        return fill_rows(jobs.staging, jobs.recipe.extensions, jobs.workspace / "logs")


@task(**policies.step(steps.CONFORM.name))
def conform(plan: Plan, report_progress: ProgressCallback) -> Conformance:
    """Ask every operator of PyTorch's test suite what the toolchain makes of it."""
    with announce_step("conform"):
        return make_table(plan, report_progress)


@task(**policies.step(steps.SIGN_TABLE.name))
def sign_table(process: StepProcess, host: HostSettings, table: Conformance) -> str:
    """Sign a conformance table; return the envelope."""
    return _run_step(process, SignTableJob(table, host.key), "sign").envelope


@task(**policies.step("sign and append"))
def append(registrar: StepProcess, signer: StepProcess, change: Change) -> AppendResult:
    """Sign the version, and append it to the ledger: from then on it is released."""
    with announce_step("sign"):
        return append_change(registrar, signer, change)
