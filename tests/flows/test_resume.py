"""A run that crashed is started again: once for a crash, three attempts at most, as it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.prefect_server import prefect_client

pytestmark = pytest.mark.server
_QUEUE = "model-toy"


@dataclass
class Server:
    """A server with a deployment that nobody works for."""

    client: Any
    deployment: uuid.UUID

    def crashed(self, state: str = "Crashed", **parameters: Any) -> Any:
        """Return a run of the deployment, in its model's queue, that has ended in that state."""
        from prefect import states

        run = self.client.create_flow_run_from_deployment(
            self.deployment, parameters=parameters, tags=["model:toy", "commit:0123"],
            idempotency_key=uuid.uuid4().hex, work_queue_name=_QUEUE,
        )  # fmt: skip
        self.client.set_flow_run_state(run.id, getattr(states, state)(), force=True)
        return run

    def repeats(self, run: Any) -> list[Any]:
        """Return the runs that took its place."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

        key = FlowRunFilterIdempotencyKey(any_=[f"resume:{run.id}"])
        found: list[Any] = self.client.read_flow_runs(
            flow_run_filter=FlowRunFilter(idempotency_key=key)
        )
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, and this process as one that asks it."""
    from prefect.client.schemas.actions import WorkPoolCreate

    with prefect_client(tmp_path_factory.mktemp("prefect")) as client:
        client.create_work_pool(WorkPoolCreate(name="pool", type="process"))
        client.create_work_queue(name=_QUEUE, work_pool_name="pool")
        deployment = client.create_deployment(
            client.create_flow_from_name("toy"), "handoff", entrypoint="toy.flow",
            work_pool_name="pool", tags=["handoff", "handoff-resume"],
        )  # fmt: skip
        yield Server(client, deployment)


def resume(run: str) -> str:
    """Call the flow, as its deployment does."""
    from handoff.flows.resume import resume as flow

    return "\n".join(flow(run))


def test_a_crashed_run_is_repeated_once_with_its_queue_its_tags_and_its_parameters(
    server: Server,
) -> None:
    run = server.crashed(delivery="/d", attempt=1)
    # As the automation names it, and as a person does.
    assert "attempt 2 of 3" in resume(f"prefect.flow-run.{run.id}")
    assert "attempt 2 of 3" in resume(str(run.id))
    (again,) = server.repeats(run)
    assert (again.deployment_id, again.work_queue_name) == (server.deployment, _QUEUE)
    assert again.parameters == {"delivery": "/d", "attempt": 2}
    assert {"handoff", "handoff-resume", "model:toy", "commit:0123"} <= set(again.tags)
    assert again.state.is_scheduled()


def test_the_third_crash_is_the_last(server: Server) -> None:
    second = server.crashed(attempt=2)
    assert "attempt 3 of 3" in resume(str(second.id))
    third = server.crashed(attempt=3)
    assert "crashed 3 times, and is given up" in resume(str(third.id))
    assert server.repeats(third) == []


@pytest.mark.parametrize("state", ["Completed", "Failed", "Cancelled", "Running"])
def test_what_has_not_crashed_is_left_alone(state: str, server: Server) -> None:
    run = server.crashed(state)
    assert "has not crashed, and is left alone" in resume(str(run.id))
    assert server.repeats(run) == []


def test_what_an_automation_missed_is_repeated_by_the_schedule_and_nothing_else(
    server: Server,
) -> None:
    resume("all")
    missed, given_up = server.crashed(attempt=1), server.crashed(attempt=3)
    well, repeated = server.crashed("Completed"), server.crashed(attempt=1)
    resume(str(repeated.id))
    assert "attempt 2 of 3" in resume("all")
    assert len(server.repeats(missed)) == 1
    assert resume("all") == ""
    assert [len(server.repeats(run)) for run in (given_up, well, repeated)] == [0, 0, 1]


def test_what_is_no_run_is_refused_before_the_server_is_asked() -> None:
    from prefect.exceptions import ParameterTypeError

    with pytest.raises(ParameterTypeError, match="String should match pattern"):
        resume("prefect.flow-run.*")
