"""The example with FastAPI, as a real server, of two processes while versions are promoted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.serving.calling import (
    Server,
    calling,
    follow_environment,
    read_counter,
    running_commands,
)
from tests.prefect_server import free_port
from tests.tasks.built_release import ITEMS, BuiltRelease
from tests.tasks.follow.versions import shelf_of
from tests.tasks.registry.registering import some_registry

pytestmark = [pytest.mark.compile, pytest.mark.server]
PROCESSES = 2


@pytest.fixture
def server(
    request: pytest.FixtureRequest, tmp_path: Path, built_release: BuiltRelease
) -> Iterator[Server]:
    """A server of so many processes that follows production, which stands for version 1."""
    registry = some_registry(tmp_path)
    shelf = shelf_of(registry, built_release)
    shelf.release(1.0)
    (tmp_path / "metrics").mkdir()
    environment = follow_environment(registry, tmp_path) | {
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")
    }
    port = free_port()
    command = [
        sys.executable, "-m", "uvicorn", "examples.serving.fastapi_app:app", "--port", str(port),
        "--workers", str(request.param), "--timeout-worker-healthcheck", "120",
    ]  # fmt: skip
    with running_commands(tmp_path, environment, command):
        yield Server(f"http://127.0.0.1:{port}", shelf)


@pytest.mark.long
@pytest.mark.parametrize("server", [PROCESSES], indirect=True)
def test_two_processes_go_along_with_a_promotion_while_they_are_called_and_tell_what_they_serve(
    server: Server,
) -> None:
    server.wait(lambda health: health["version"] == 1 and health["current"], PROCESSES)
    with calling(server) as calls:
        assert server.shelf.release(2.0) == 2
        server.wait(lambda health: health["version"] == 2 and health["current"], PROCESSES)
        # One whose numbers aren't the original model's is not taken.
        assert server.shelf.release(3.0, golden=4.0) == 3
        server.wait(lambda health: health["version"] == 2 and bool(health["error"]), PROCESSES)
    assert calls.failed == []
    assert set(calls.answered) == {(1, 1.0), (2, 2.0)}

    made = read_counter(server.get("metrics"), "model_requests_total", "version", "outcome")
    assert made == {
        (str(version), "answered"): count for (version, _), count in calls.answered.items()
    }
    assert set(read_counter(server.get("metrics"), "model_version", "pid").values()) == {2}
    assert len(read_counter(server.get("metrics"), "model_version", "pid")) == PROCESSES
    assert set(read_counter(server.get("metrics"), "model_is_current", "pid").values()) == {0}
    # Calls that came together were answered together: more rows than a request has.
    rows = read_counter(server.get("metrics"), "model_call_rows_sum")[()]
    assert rows > sum(6 - number for number in range(4)) / 4 * calls.answered.total()


@pytest.mark.parametrize("server", [1], indirect=True)
def test_a_wrong_request_is_told_why_and_the_next_one_is_answered(server: Server) -> None:
    server.wait(lambda health: health["version"] == 1)
    ids, features = (tensor[:1].tolist() for tensor in server.shelf.call)
    status, answer = server.predict(ids=[[ITEMS] * 20], features=features)
    assert status == 422
    assert f"0 to {ITEMS - 1}" in answer["detail"]
    assert server.predict(ids=ids)[0] == 422
    assert server.predict(ids=[["no number"]], features=features)[0] == 422
    # torch would cut it to another id.
    fractions = [[one + 0.5 for one in row] for row in ids]
    assert server.predict(ids=fractions, features=features)[0] == 422
    assert server.predict(ids=ids, features=features)[0] == 200
    made = read_counter(server.get("metrics"), "model_requests_total", "outcome")
    assert made == {("refused",): 4, ("answered",): 1}
