"""Runs that a flow hands out: many at once, each once, and a further one after a failure."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from handoff.flows.children import ChildRun, start_all
from handoff.infra.engine.environments import worker_environment
from handoff.infra.settings import read_settings
from tests.faulty_server import FaultyServer
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_client

pytestmark = pytest.mark.server
_COUNT = 20
_WAIT = """
import sys, uuid
from prefect.client.orchestration import get_client
from handoff.flows.children import wait_for
with get_client(sync_client=True) as client:
    run = client.read_flow_run(uuid.UUID(sys.argv[1]))
print(wait_for([run], 1.0)[run.id].state.type.value)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, uuid.UUID]]:
    """A client of a server, and a deployment that nobody works for."""
    with prefect_client(tmp_path_factory.mktemp("prefect")) as client:
        flow = client.create_flow_from_name("toy")
        yield client, client.create_deployment(flow, "handoff", entrypoint="toy.flow")


def test_many_are_handed_out_in_their_order_and_each_once_however_often_it_is_asked(
    server: tuple[Any, uuid.UUID],
) -> None:
    client, deployment = server
    children = [
        ChildRun(deployment, f"night:{n}", {"number": n}, (f"model:{n}",)) for n in range(_COUNT)
    ]
    runs = start_all(client, children)
    assert [run.parameters["number"] for run in runs] == list(range(_COUNT))
    assert len({run.id for run in runs}) == _COUNT
    assert [run.id for run in start_all(client, children)] == [run.id for run in runs]


@pytest.mark.parametrize(
    ("state", "attempt", "is_repeated"),
    [
        ("Completed", 1, False),
        ("Running", 1, False),
        ("Failed", 1, True),
        # `resume` starts that one again: a second one would work beside it.
        ("Crashed", 1, False),
        ("Crashed", 3, True),
    ],
)
def test_what_ended_without_success_and_is_repeated_by_nobody_is_handed_out_once_more(
    state: str, attempt: int, is_repeated: bool, server: tuple[Any, uuid.UUID]
) -> None:
    from prefect import states

    client, deployment = server
    key = f"ends:{state}:{attempt}"
    child = ChildRun(deployment, key, {"attempt": attempt})
    (first,) = start_all(client, [child])
    client.set_flow_run_state(first.id, getattr(states, state)(), force=True)
    (second,) = start_all(client, [child])
    assert (second.id != first.id) == is_repeated
    assert second.idempotency_key == (f"{key}:2" if is_repeated else key)


def test_a_server_whose_database_is_away_for_a_moment_ends_no_flow(
    server: tuple[Any, uuid.UUID],
) -> None:
    client, deployment = server
    (run,) = start_all(client, [ChildRun(deployment, "away", {})])
    with FaultyServer(str(client.api_url).rstrip("/").removesuffix("/api")) as faulty:
        # What Prefect's server answers while PostgreSQL restarts.
        faulty.plan("broken", times=2, path="flow_runs/filter")
        environment = {**worker_environment(read_settings(), None),
                       "PREFECT_API_URL": f"{faulty.url}/api"}  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-c", _WAIT, str(run.id)], env={**os.environ, **environment},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        broken = [request.fault for request in faulty.log].count("broken")
    assert ended.stdout.strip() == "SCHEDULED", ended.stderr
    assert broken == 2
