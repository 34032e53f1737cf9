"""The process of `handoff worker --one-run`: one flow run in a pod of its own, as a worker runs it.

Prefect's Kubernetes worker makes the pod and looks after its Job; a run under way is cancelled by
whoever started its process (3.8). So this does with one run what `handoff worker` does with many.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from contextlib import suppress
from uuid import UUID

import anyio
from anyio.abc import TaskStatus
from prefect.client.orchestration import get_client
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from handoff.infra.prefect.deployments import FLOW_RUN_COMMAND


async def carry_out(run: UUID, pool: str) -> int:
    """Carry out the run in a process of its own; return how that ended, as an exit code.

    SIGTERM, by which a pod is told to end, is handed on: the run says then that it crashed.
    """
    async with get_client() as client:
        flow_run = await client.read_flow_run(run)
    configuration = ProcessJobConfiguration(command=FLOW_RUN_COMMAND)
    configuration.prepare_for_flow_run(flow_run)
    worker = ProcessWorker(work_pool_name=pool)
    exit_codes: list[int] = []

    async def work(*, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        result = await worker.run(flow_run, configuration, task_status)
        exit_codes.append(result.status_code)
        group.cancel_scope.cancel()

    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            process = await group.start(work)
            async for _ in signals:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
    return exit_codes[0]


def main() -> None:
    """Carry out the run that is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool", required=True)
    parser.add_argument("--run", required=True, type=UUID)
    arguments = parser.parse_args()
    # A process that a signal ended has no exit code of its own.
    code = asyncio.run(carry_out(arguments.run, arguments.pool))
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
