"""Commands whose steps run in this process: starting one of their own takes seconds each."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from click.testing import CliRunner, Result

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.record import Job
from handoff.infra.cli.main import main
from handoff.infra.engine.child import ProcessPlan, TimedResult
from handoff.infra.engine.worker import step_function
from handoff.tasks.steps import step_of

R = TypeVar("R")


class StepsHere:
    """Stands for a `StepProcess`, and runs its jobs here."""

    def __init__(self, plan: ProcessPlan, log: Path) -> None:
        pass

    def run(self, job: Job[R]) -> R:
        """Return what the step of `job` returns; raise what it raises."""
        result: R = step_function(step_of(job).module)(job)
        return result

    def submit(self, job: Job[R]) -> Future[TimedResult[R]]:
        """Run the job at once; return its future, which is done."""
        done: Future[TimedResult[R]] = Future()
        try:
            done.set_result(TimedResult(self.run(job), 0.0))
        except Exception as error:  # noqa: BLE001 - as a process' future has it
            done.set_exception(error)
        return done

    def close(self) -> None:
        """End nothing."""


def ran(command: str, *arguments: str | Path) -> Result:
    """Return what the command printed here, and how it ended."""
    return CliRunner().invoke(main.commands[command], [str(one) for one in arguments])


def output_of(command: str, *arguments: str | Path) -> str:
    """Return what the command printed as its result; it has to end well."""
    ended = ran(command, *arguments)
    assert ended.exit_code == 0, ended.exception
    return ended.stdout


def refusal(command: str, *arguments: str | Path) -> str:
    """Return the sentence that the command refuses with as a wrong use."""
    refused = ran(command, *arguments).exception
    assert isinstance(refused, UsageProblem)
    return str(refused)
