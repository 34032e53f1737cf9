"""Managed servers, whose logins are keys: Prefect and MLflow behind a front that asks for them.

What stands in for Prefect Cloud and Databricks is their own open servers, at addresses and with
headers as those services have them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from handoff.flows.names import RELEASE
from handoff.infra.prefect.pools import online_workers
from handoff.infra.prefect.prefect_api import open_client
from handoff.infra.servers import prefect_status
from handoff.infra.settings import Key
from handoff.tasks.deliver.step import deliver
from tests import toy_models as toys
from tests.limits import LIMIT_S
from tests.mlflow_server import mlflow_server
from tests.prefect_server import free_port, prefect_server
from tests.served_stack import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        shutil.which("caddy") is None, reason="no Caddy. As root: apt-get install caddy"
    ),
]
KEY, TOKEN = "pnu_of-a-test", "dapi-of-a-test"
_WORKSPACE = "/api/accounts/a1/workspaces/w1"
_FRONT = """\
{{
    admin off
    auto_https off
}}
http://127.0.0.1:{front} {{
    @known header Authorization "Bearer {key}"
    handle @known {{
        uri replace {workspace} /api 1
        reverse_proxy {prefect}
    }}
    respond 401
}}
http://127.0.0.1:{tracking} {{
    @known header Authorization "Bearer {token}"
    handle @known {{
        reverse_proxy {mlflow} {{
            header_up -Authorization
        }}
    }}
    respond 401
}}
"""


@dataclass(frozen=True)
class Managed:
    """Two services, as their users name them; and Prefect's own server behind."""

    prefect: str
    mlflow: str
    behind: str

    def run(self, home: Path, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
        """Run `handoff` as their user."""
        return subprocess.run(
            [sys.executable, "-m", "handoff", *words], env=self.environment(home) | changed,
            capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of their user."""
        return {
            **os.environ, "HANDOFF_HOME": str(home), "HANDOFF_STORE": str(home / "store"),
            "PREFECT_API_URL": self.prefect, "PREFECT_API_KEY": KEY,
            # By which Prefect's client knows that a server is its makers' own.
            "PREFECT_CLOUD_API_URL": self.prefect.removesuffix("/accounts/a1/workspaces/w1"),
            "MLFLOW_TRACKING_URI": self.mlflow, "MLFLOW_TRACKING_TOKEN": TOKEN,
        }  # fmt: skip


@contextmanager
def started(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """Have a program run in the body; what it says is in the log."""
    with log.open("wb") as stream:
        program = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            program.terminate()
            program.wait(60)


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    folder = tmp_path_factory.mktemp("managed")
    with ExitStack() as opened:
        prefect = opened.enter_context(prefect_server(folder / "prefect"))
        mlflow = opened.enter_context(mlflow_server(folder / "mlflow", str(folder / "artifacts")))
        front, tracking = free_port(), free_port()
        file = folder / "Caddyfile"
        file.write_text(_FRONT.format(
            front=front, tracking=tracking, key=KEY, token=TOKEN, workspace=_WORKSPACE,
            prefect=prefect.removesuffix("/api"), mlflow=mlflow,
        ))  # fmt: skip
        command = ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        opened.enter_context(started(command, environment, folder / "front.log"))
        here = f"http://127.0.0.1:{front}{_WORKSPACE}"
        wait_until("the front answers", lambda: prefect_status(here, Key(KEY)) == 200)
        yield Managed(here, f"http://127.0.0.1:{tracking}", prefect)


@pytest.fixture(scope="module")
def home(managed: Managed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of who has deployed there."""
    home = tmp_path_factory.mktemp("home")
    answer = managed.run(home, "deploy")
    assert answer.returncode == 0, answer.stderr
    return home


def test_pools_deployments_and_automations_are_held_by_the_service(
    managed: Managed, home: Path
) -> None:
    assert home
    with open_client(managed.behind, "") as client:
        assert client.read_deployment_by_name(RELEASE).work_pool_name == "handoff-build"
        assert len(client.read_automations()) == 5


@pytest.mark.parametrize("changed", [{"PREFECT_API_KEY": "pnu_wrong"}, {"PREFECT_API_KEY": ""}])
def test_a_key_that_the_service_does_not_know_is_reported(
    managed: Managed, changed: dict[str, str], tmp_path: Path
) -> None:
    key = changed["PREFECT_API_KEY"]
    assert prefect_status(managed.prefect, Key(key) if key else "") == 401
    worker = managed.run(tmp_path, "worker", **changed)
    assert worker.returncode == 64, worker.stderr
    assert "Prefect Cloud's key in PREFECT_API_KEY, got HTTP status 401" in worker.stderr
    deployed = managed.run(tmp_path, "deploy", **changed)
    assert deployed.returncode == 1, deployed.stderr
    assert "doesn't let us in" in deployed.stderr
    assert "Traceback" not in worker.stderr + deployed.stderr


@pytest.mark.long
def test_a_worker_proves_both_services_and_is_in_the_pool(
    managed: Managed, home: Path, tmp_path: Path
) -> None:
    refused = managed.run(home, "worker", MLFLOW_TRACKING_TOKEN="dapi-wrong")
    assert refused.returncode == 1, refused.stderr
    assert "its token in MLFLOW_TRACKING_TOKEN" in refused.stderr
    command = [sys.executable, "-m", "handoff", "worker", "--name", "of-a-service"]
    log = tmp_path / "worker.log"
    with started(command, managed.environment(home), log), open_client(managed.behind, "") as own:
        wait_until(
            "it is in the pool",
            lambda: "of-a-service" in online_workers(own).get("handoff-build", []),
        )
    assert f"MLflow: {managed.mlflow}, which answers" in log.read_text()
    assert KEY not in log.read_text()
    assert TOKEN not in log.read_text()


@pytest.mark.long
def test_a_release_is_recorded_by_both_services(
    managed: Managed, home: Path, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    deliver(toys.make(toys.SmallNet), (torch.randn(6, 8),), tmp_path / "toy", name="toy")
    done = managed.run(home, "release", str(tmp_path / "toy"))
    assert done.returncode == 0, done.stderr
    with open_client(managed.behind, "") as client:
        runs = [one for one in client.read_flow_runs() if one.name.startswith("release")]
        assert [run.state and run.state.is_completed() for run in runs] == [True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
        assert MlflowClient(managed.mlflow).get_model_version("toy", "1").status == "READY"
