"""The process of `handoff worker`: Prefect's worker, which proves its machine while it works.

Before each job, unless it did so within a minute, it looks at what may have changed since it began
(`infra.stack.preflight`). Where that fails it takes no job, lets those that it has end, and leaves
its pool, and reports the reason to the server. It is back as soon as all is proved again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx
from prefect.utilities.processutils import setup_signal_handlers_worker
from prefect.workers.process import ProcessWorker

from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.infra.engine.environments import replace_process
from handoff.infra.prefect.absences import Absence, clear_absence, report_absence
from handoff.infra.settings import Settings, read_settings
from handoff.infra.stack.preflight import run_checks
from handoff.infra.stack.start import reset_signals
from handoff.infra.terminal.output import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import FlowRun
    from prefect.workers.process import ProcessJobConfiguration, ProcessWorkerResult

# How long what was proved holds, and how often it is tried again where it was not.
_VALID_S = 60.0
_RETRY_S = 30.0
# A run that went back to the pool is first offered to others, who look every five seconds.
_PAUSE_S = 30.0


class PreflightWorker(ProcessWorker):
    """Prefect's process worker, which asks for no job while its machine fails its own checks."""

    def __init__(
        self, settings: Settings, leave: Callable[[], None], *, pool: str, name: str,
        limit: int | None,
    ) -> None:  # fmt: skip
        """Work for a pool; `leave` ends this once nothing runs here, where something lacks."""
        super().__init__(work_pool_name=pool, name=name, limit=limit)
        self._run_checks = partial(run_checks, settings, pool)
        self._leave = leave
        self._running = 0
        self._slots = limit
        # It was all proved before this process began.
        self._checked_at = time.monotonic()
        self._is_suspect = False
        self._paused_until = 0.0
        self.lacking: EnvironmentLacking | None = None

    @classmethod
    def __dispatch_key__(cls) -> str:
        """Leave the type's name to Prefect's own, whose pools these are."""
        return "handoff-process"

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Take jobs, if there is a free slot, and this machine can do them."""
        is_full = self._slots is not None and self._running >= self._slots
        if not is_full and not await self._is_fit():
            return []
        return await super().get_and_submit_flow_runs()

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:  # fmt: skip
        """Run a job; doubt this machine where it failed for the machine's sake."""
        self._running += 1
        try:
            result = await super().run(flow_run, configuration, task_status)
            if await self._was_rescheduled(flow_run):
                self._is_suspect = True
            return result
        finally:
            self._running -= 1

    async def _was_rescheduled(self, flow_run: FlowRun) -> bool:
        """Return whether it went back to its pool (`flows.rescheduling`) since it was taken."""
        taken_at = flow_run.state.timestamp if flow_run.state else None
        try:
            states = await self.client.read_flow_run_states(flow_run.id)
        except httpx.HTTPError:
            return False
        return any(
            state.name == "AwaitingRetry" and (taken_at is None or state.timestamp > taken_at)
            for state in states
        )

    async def _is_fit(self) -> bool:
        now = time.monotonic()
        if now < self._paused_until:
            return False
        if not self._is_suspect and self.lacking is None and now - self._checked_at < _VALID_S:
            return True
        try:
            briefly = partial(self._run_checks, briefly=not self._is_suspect)
            await anyio.to_thread.run_sync(briefly)
        except EnvironmentLacking as error:
            self._mark_unfit(error)
            return False
        # Nothing lacks that a check knows of: still, others are to try first what failed here.
        is_pausing = self._is_suspect and self.lacking is None
        self.lacking, self._is_suspect, self._checked_at = None, False, time.monotonic()
        self._paused_until = self._checked_at + _PAUSE_S if is_pausing else 0.0
        return not is_pausing

    def _mark_unfit(self, error: EnvironmentLacking) -> None:
        if self.lacking is None:
            echo(f"handoff: {error}", err=True)
        self.lacking, self._is_suspect = error, True
        self._paused_until = time.monotonic() + _RETRY_S
        if not self._running:
            self._leave()


async def work(settings: Settings, options: dict[str, Any]) -> EnvironmentLacking | None:
    """Work until this is ended, or something lacks; return that."""
    with anyio.CancelScope() as scope:
        worker = PreflightWorker(settings, scope.cancel, **options)
        await worker.start(printer=echo)
    return worker.lacking if scope.cancel_called else None


def wait_until_fit(settings: Settings, pool: str, name: str, error: HandoffError) -> None:
    """Leave the pool, and return when all that a job needs is proved again."""
    absence = Absence.of(pool, name, error)
    while True:
        report_absence(settings, absence)
        time.sleep(_RETRY_S)
        try:
            run_checks(settings, pool)
        except EnvironmentLacking as still:
            absence = Absence.of(pool, name, still, absence.since)
        else:
            return


def main() -> None:
    """Work for a pool; leave it while something lacks, and begin again when it doesn't any more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--limit", type=int)
    options = vars(parser.parse_args())
    settings = read_settings()
    clear_absence(settings, options["pool"], options["name"])
    setup_signal_handlers_worker(os.getpid(), f"the worker {options['name']}", echo)
    try:
        lacking = asyncio.run(work(settings, options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        lacking = None
    if lacking is None:
        return
    # Nothing runs here now: a signal may end this at once.
    reset_signals()
    echo(f"handoff: the worker {options['name']} leaves {options['pool']} until that is put right",
         err=True)  # fmt: skip
    wait_until_fit(settings, options["pool"], options["name"], lacking)
    echo(f"handoff: the worker {options['name']} is back", err=True)
    replace_process([sys.executable, *sys.orig_argv[1:]], {})


if __name__ == "__main__":
    main()
