"""Workers that run flow runs in threads of one process: the server's load without Python's starts.

    python -m tests.studies.benchmarks.night_workers POOL COUNT SLOTS

Each is Prefect's own process worker, limited to SLOTS runs at once: it polls, claims, and tells its
heartbeats like any other. Only where that one starts a process it calls the engine in a thread, so
that two cores are enough for the talk of hundreds of runs.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from prefect.flow_engine import run_flow_sync
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

from handoff.flows import host
from handoff.infra.settings import read_host_settings, read_settings
from tests.studies.benchmarks.night_flow import recompile_model

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


class ThreadWorker(ProcessWorker):
    """A process worker whose runs are threads."""

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run the flow here; its end is Prefect's to tell."""
        if task_status is not None:
            task_status.started(os.getpid())

        def run() -> Any:
            return run_flow_sync(
                recompile_model, flow_run, parameters=flow_run.parameters, return_type="state"
            )

        await anyio.to_thread.run_sync(run, limiter=_THREADS)
        return ProcessWorkerResult(status_code=0, identifier=str(os.getpid()))


_THREADS = anyio.CapacityLimiter(1000)


async def _work(pool: str, count: int, slots: int) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            worker = ThreadWorker(pool, name=f"bench-{os.getpid()}-{number}", limit=slots)
            group.start_soon(worker.start)


if __name__ == "__main__":
    host.provide(lambda: read_host_settings(read_settings(), is_worker=True))
    anyio.run(_work, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
