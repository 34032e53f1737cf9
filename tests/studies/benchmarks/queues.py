"""What a work queue for each model costs a server: the time of a worker's poll, by their number.

    python -m tests.studies.benchmarks.queues --counts 0,500,2000

Workers poll every five seconds, and each poll looks at all queues of the pool. Queues have no run
waiting, or (`--waiting N`) N runs wait in the pool's default queue: a poll brings up to 200 of them
back, however many the worker has room for.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from handoff.infra.terminal.console import print_table
from tests.studies.benchmarks.night import deploy
from tests.studies.benchmarks.night_stack import Meter, Stack, open_stack

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_POOL = "handoff-build"
_POLLS = 15
# Prefect marks queues as polled behind the answer.
_SETTLE_S = 5.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="0,500,2000")
    parser.add_argument("--waiting", type=int, default=200)
    args = parser.parse_args()
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="handoff-queues-", dir="/var/tmp") as scratch,
        open_stack(Path(scratch), 1.0) as stack,
        temporary_settings({PREFECT_API_URL: stack.api}),
    ):
        deploy()
        with get_client(sync_client=True) as client:
            made = 0
            for count in map(int, args.counts.split(",")):
                _make_queues(client, range(made, count))
                made = count
                rows.append(_poll(stack, client, f"{count} queues"))
                print(rows[-1], flush=True)
            _let_wait(client, args.waiting)
            rows.append(_poll(stack, client, f"{made} queues, {args.waiting} runs wait"))
    columns = ("", "poll ms", "range ms", "server CPU ms", "PostgreSQL CPU ms", "answer kB", "load")
    print_table("", columns, rows)


def _make_queues(client: SyncPrefectClient, numbers: range) -> None:
    def make(number: int) -> None:
        client.create_work_queue(f"model-{number:05}", concurrency_limit=1, work_pool_name=_POOL)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, numbers))


def _let_wait(client: SyncPrefectClient, count: int) -> None:
    from tests.studies.benchmarks.night_flow import some_parameters

    deployment = client.read_deployment_by_name("recompile-model/handoff")
    for number in range(count):
        parameters = some_parameters(f"model-{number:05}")
        client.create_flow_run_from_deployment(deployment.id, parameters=parameters)


def _poll(stack: Stack, client: SyncPrefectClient, what: str) -> tuple[str, ...]:
    """Ask as workers do, one poll after the other; return a line of the table."""
    import psutil

    meter = Meter(stack)
    time.sleep(_SETTLE_S)
    idle = _cpu_during(meter, lambda: time.sleep(_SETTLE_S))
    took, size = [], 0
    before, began = meter.cpu_seconds(), time.monotonic()
    for _ in range(_POLLS):
        polled = time.monotonic()
        then = (datetime.now(UTC) + timedelta(seconds=10)).isoformat()
        answer = client._client.post(
            f"/work_pools/{_POOL}/get_scheduled_flow_runs", json={"scheduled_before": then}
        )
        took.append(1e3 * (time.monotonic() - polled))
        size = len(answer.content)
    time.sleep(_SETTLE_S)
    after, seconds = meter.cpu_seconds(), time.monotonic() - began
    # What both would have used in that time without a poll is not the polls'.
    used = {
        group: (after[group] - before[group] - idle[group] * seconds / _SETTLE_S) / _POLLS
        for group in ("server", "postgres")
    }
    return (
        what, f"{statistics.median(took):.0f}", f"{min(took):.0f} to {max(took):.0f}",
        f"{1e3 * used['server']:.0f}", f"{1e3 * used['postgres']:.0f}", f"{size / 1e3:.0f}",
        f"{psutil.getloadavg()[0]:.1f}",
    )  # fmt: skip


def _cpu_during(meter: Meter, body: Callable[[], object]) -> dict[str, float]:
    """Return the CPU seconds of each group of the stack while the body ran."""
    before = meter.cpu_seconds()
    body()
    return {group: now - before[group] for group, now in meter.cpu_seconds().items()}


if __name__ == "__main__":
    main()
