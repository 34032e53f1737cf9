"""The example with Ray Serve, on a Ray of its own: two processes, while a version is promoted."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.serving.calling import (
    ROOT,
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

RAY = ROOT / ".venv-ray" / "bin"
PROCESSES = 2
pytestmark = [
    pytest.mark.compile,
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(not RAY.is_dir(), reason="make ray-ready makes .venv-ray, with Ray Serve"),
]
CONFIG = """
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
- {{name: followed, route_prefix: /, import_path: "examples.serving.ray_app:app"}}
"""


@dataclass(frozen=True)
class RayServer(Server):
    """One whose metrics Ray serves, for all of its processes, at a port of their own."""

    metrics: str

    def read_counter(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        with urllib.request.urlopen(self.metrics, timeout=60) as response:
            return read_counter(response.read().decode(), name, *labels)


@pytest.fixture
def server(tmp_path: Path, built_release: BuiltRelease) -> Iterator[RayServer]:
    """A Ray with two processes that follow production, which stands for version 1."""
    registry = some_registry(tmp_path)
    shelf = shelf_of(registry, built_release)
    shelf.release(1.0)
    ports = {name: free_port() for name in ("gcs", "http", "metrics")}
    environment = follow_environment(registry, tmp_path) | {
        "REPLICAS": str(PROCESSES), "RAY_ADDRESS": f"127.0.0.1:{ports['gcs']}",
        "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT),
        # Beside other tests a process takes longer to start than Ray's 5 s.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    }  # fmt: skip
    (tmp_path / "serve.yaml").write_text(CONFIG.format(port=ports["http"]))
    head: list[str | Path] = [
        RAY / "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={ports['gcs']}", f"--metrics-export-port={ports['metrics']}",
        "--num-cpus=4", "--object-store-memory=100000000", "--include-dashboard=false",
    ]  # fmt: skip
    serve: list[str | Path] = [RAY / "serve", "run", tmp_path / "serve.yaml"]
    address = f"http://127.0.0.1:{ports['http']}"
    with running_commands(tmp_path, environment, head, serve):
        yield RayServer(address, shelf, f"http://127.0.0.1:{ports['metrics']}/metrics")


def test_two_processes_go_along_with_a_promotion_and_tell_what_they_serve(
    server: RayServer,
) -> None:
    server.wait(lambda health: health["version"] == 1 and health["current"], PROCESSES)
    with calling(server) as calls:
        assert server.shelf.release(2.0) == 2
        server.wait(lambda health: health["version"] == 2 and health["current"], PROCESSES)
    assert calls.failed == []
    assert set(calls.answered) == {(1, 1.0), (2, 2.0)}

    ids, features = (tensor[:1].tolist() for tensor in server.shelf.call)
    status, answer = server.predict(ids=[[ITEMS] * 20], features=features)
    assert status == 422
    assert f"0 to {ITEMS - 1}" in answer["detail"]
    assert server.predict(ids=ids)[0] == 422
    assert server.predict(ids=ids, features=features)[0] == 200

    expected = Counter({("2", "answered"): 1, ("", "refused"): 2})
    for (version, _), count in calls.answered.items():
        expected[str(version), "answered"] += count
    until = time.monotonic() + 60
    # Ray's processes tell theirs every ten seconds.
    while (
        made := server.read_counter("ray_model_requests_total", "version", "outcome")
    ) != expected:
        assert time.monotonic() < until, (made, expected)
        time.sleep(1)
    # Calls that came together were answered together: more rows than a request has.
    rows = server.read_counter("ray_model_call_rows_sum")[()]
    assert rows > sum(6 - number for number in range(4)) / 4 * calls.answered.total()
