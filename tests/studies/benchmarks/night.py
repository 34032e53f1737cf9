"""A simulated night: the real parent, queue, server and PostgreSQL; models that sleep.

    make bench-night NIGHT=500 WORKERS=1,4,16
    python -m tests.studies.benchmarks.night --models 500 --workers 16 --faster 20 --json n.json
    python -m tests.studies.benchmarks.night --models 40 --workers 4 --processes  # a process a run

Each scenario is one run of the deployment `recompile/handoff` over a store of that many signed
ledgers, all due. What is measured is the machinery around the models: their steps sleep their
recorded seconds, divided by `--faster` (`tests.studies.benchmarks.night_flow`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from tests.studies.benchmarks.night_counts import Counts, Night, outcome_of
from tests.studies.benchmarks.night_outcome import Outcome, Scenario, show
from tests.studies.benchmarks.night_stack import Meter, Stack, open_stack, open_workers
from tests.studies.benchmarks.night_store import fill_store, model_names, timed_survey

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_POLL_S = 3.0
_PAGE = 200


def main() -> None:
    """Run the scenarios, print a table, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--workers", default="1,4,16", help="1,2x8:500: see Scenario")
    parser.add_argument("--faster", type=float, default=20.0)
    parser.add_argument("--processes", action="store_true", help="start a process for each run")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of each scenario")
    parser.add_argument("--unchanged", action="store_true", help="nothing is due")
    parser.add_argument("--home", type=Path, help="a home with a store that was filled before")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--server", action="append", default=[], help="NAME=VALUE for the server")
    args = parser.parse_args()
    home = args.home or Path(tempfile.mkdtemp(prefix="handoff-night-", dir="/var/tmp"))
    if not (home / "store").exists():
        filled = fill_store(home, args.models, unchanged=args.unchanged)
        found, seconds = timed_survey(filled)
        print(f"survey: {1e3 * seconds / len(found.models):.1f} ms a model")
    settings = dict(pair.split("=", 1) for pair in args.server)
    outcomes = []
    with open_deployed(home, args.faster, **settings) as stack:
        for text in args.workers.split(","):
            scenario = Scenario.parse(text, args.models, threads=not args.processes)
            outcomes.append(play(stack, scenario, args.faster, args.limit_s))
            show(outcomes[-1:])
            if args.json:
                args.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))
    if not args.home:
        shutil.rmtree(home)


@contextmanager
def open_deployed(home: Path, faster: float, **settings: str) -> Iterator[Stack]:
    """Start the servers with the deployments of a night; `settings` are the server's."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with (
        open_stack(home, faster, **settings) as stack,
        temporary_settings({PREFECT_API_URL: stack.api}),
    ):
        deploy()
        yield stack


def deploy() -> None:
    """Apply the real deployments, but for the flow of one model."""
    from handoff.infra.commands.deploy import apply
    from handoff.infra.prefect.deployments import Schedule, deployments

    ours = "tests.studies.benchmarks.night_flow.recompile_model"
    never = Schedule("0 2 1 1 *", "UTC")
    model_flow = "handoff.flows.nightly.recompile.recompile_model"
    apply(
        tuple(replace(d, flow=ours if d.flow == model_flow else d.flow) for d in deployments(never))
    )


def play(stack: Stack, scenario: Scenario, faster: float, limit_s: float) -> Outcome:
    """Run one night; give it up after `limit_s`, and return how far it came."""
    from prefect.client.orchestration import get_client

    meter = Meter(stack)
    with (
        get_client(sync_client=True) as client,
        open_workers(stack, scenario.workers, scenario.slots, threads=scenario.threads),
    ):
        _wait_for_workers(client, scenario)
        before, began = Counts.of(meter), time.monotonic()
        with meter.running():
            parent = _see_through(client, _begin(client, scenario), began + limit_s)
        wall_s = time.monotonic() - began
        counts = Counts.of(meter).since(before)
        night = Night(parent, _children(client, parent), wall_s)
    return outcome_of(scenario, faster, night, counts, meter)


def _see_through(client: SyncPrefectClient, parent: FlowRun, deadline: float) -> FlowRun:
    """Return the parent's run when it is over; at the deadline, cancel what is left of it."""
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        parent = client.read_flow_run(parent.id)
        if parent.state is not None and parent.state.is_final():
            return parent
    _cancel(client, parent.id)
    return parent


def _wait_for_workers(client: SyncPrefectClient, scenario: Scenario) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = client.read_workers_for_work_pool("handoff-build")
        fresh = [one for one in found if one.status == "ONLINE"]
        control = client.read_workers_for_work_pool("handoff-control")
        if len(fresh) >= scenario.workers and control:
            return
        time.sleep(2)
    raise TimeoutError(f"not all of {scenario.workers} workers came")


def _begin(client: SyncPrefectClient, scenario: Scenario) -> FlowRun:
    from handoff.flows.names import RECOMPILE

    deployment = client.read_deployment_by_name(RECOMPILE)
    parameters = {"parameters": {"models": list(model_names(scenario.models))}}
    return client.create_flow_run_from_deployment(deployment.id, parameters=parameters)


def _cancel(client: SyncPrefectClient, parent: UUID) -> None:
    """Take away what is left of a night that took too long."""
    from prefect.states import Cancelled

    client.set_flow_run_state(parent, Cancelled(message="the benchmark's time was over"), True)


def _children(client: SyncPrefectClient, parent: FlowRun) -> list[FlowRun]:
    """Return the models' runs of the night; those that are left waiting are deleted."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    began = parent.expected_start_time or parent.created
    assert began is not None
    tag = began.strftime("night:%Y%m%dT%H%M%SZ")
    flow_run_filter = FlowRunFilter(tags=FlowRunFilterTags(all_=[tag]))
    found: list[FlowRun] = []
    while page := client.read_flow_runs(
        flow_run_filter=flow_run_filter, limit=_PAGE, offset=len(found)
    ):
        found += page
    waiting = [run.id for run in found if run.state is not None and run.state.is_scheduled()]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client.delete_flow_run, waiting))
    return found


if __name__ == "__main__":
    main()
