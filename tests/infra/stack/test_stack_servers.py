"""What compose.yaml says, started by hand: its commands and environment, on a real PostgreSQL.

Only addresses, ports and folders are others than in a container. MinIO's place takes the S3 server
of the other tests. `prepare.py` is run as the one-shots run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import served_s3
from tests.infra.stack.stack_files import NO_TOOLS, STACK, TOOLS, services
from tests.infra.stack.stack_processes import (
    VALUES,
    command_of,
    environment_of,
    run_prepare,
    running,
    status_of,
)
from tests.limits import LIMIT_S
from tests.postgres_server import Postgres, postgres_programs, postgres_server
from tests.prefect_server import free_port

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not (TOOLS / "mlflow").exists(), reason=NO_TOOLS),
    pytest.mark.skipif(
        postgres_programs() is None, reason="no PostgreSQL. As root: apt-get install postgresql"
    ),
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_server(VALUES["POSTGRES_PASSWORD"]) as server:
        here = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port)}
        for _ in range(2):  # what is there already stays
            done = run_prepare("databases", here)
            assert done.returncode == 0, done.stderr
        yield server


def _psql(postgres: Postgres, user: str, password: str, database: str) -> int:
    programs = postgres_programs()
    assert programs is not None
    login = {"PGUSER": user, "PGPASSWORD": password, "PGDATABASE": database}
    query = "CREATE TABLE own (); DROP TABLE own"
    command = [str(programs / "psql"), "--no-psqlrc", "--command", query]
    environment = {**os.environ, **postgres.environment, **login}
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode


def test_each_server_has_a_database_that_the_other_can_not_enter(postgres: Postgres) -> None:
    prefect = ("prefect", VALUES["PREFECT_DATABASE_PASSWORD"])
    mlflow = ("mlflow", VALUES["MLFLOW_DATABASE_PASSWORD"])
    assert _psql(postgres, *prefect, "prefect") == 0
    assert _psql(postgres, *mlflow, "mlflow") == 0
    assert _psql(postgres, *mlflow, "mlflow_auth") == 0
    assert _psql(postgres, *mlflow, "prefect") != 0
    assert _psql(postgres, *prefect, "mlflow_auth") != 0
    assert _psql(postgres, "prefect", "wrong", "prefect") != 0


def test_preparing_says_in_one_sentence_what_is_wrong(postgres: Postgres) -> None:
    here = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "MLFLOW_DATABASE_PASSWORD": ""}
    refused = run_prepare("databases", here)
    assert refused.returncode == 1
    assert refused.stderr == "prepare databases: MLFLOW_DATABASE_PASSWORD is not set\n"


def test_prefect_of_compose_lets_in_who_has_the_password(
    postgres: Postgres, tmp_path: Path
) -> None:
    port = free_port()
    here = {
        "PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_DATABASE_HOST": "127.0.0.1",
        "PREFECT_SERVER_DATABASE_PORT": str(postgres.port),
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(tmp_path / "ui"),
    }  # fmt: skip
    command = command_of("prefect", {"0.0.0.0": "127.0.0.1", "4200": str(port)})
    api = f"http://127.0.0.1:{port}/api"
    log = tmp_path / "log"
    login = f"handoff:{VALUES['PREFECT_PASSWORD']}"
    with running(command, environment_of("prefect", here), f"{api}/ready", log):
        everything = {"limit": 5}
        assert status_of(f"{api}/flows/filter", "", everything)[0] == 401
        assert status_of(f"{api}/flows/filter", "handoff:wrong", everything)[0] == 401
        assert status_of(f"{api}/flows/filter", login, everything) == (200, b"[]")
        # The page asks where it was loaded from, whatever name this host has for a browser.
        page = json.loads(status_of(f"http://127.0.0.1:{port}/ui-settings")[1])
        assert (page["api_url"], page["auth"], page["available_uis"]) == (
            "/api",
            "BASIC",
            ["v1", "v2"],
        )
        assert (tmp_path / "ui" / "v1" / "index.html").exists()
        _require_pools_probe(api, login)
        leases = tmp_path / "concurrency_leases"
        _hold_a_slot(api, login)
        assert list(leases.glob("*.json")), "no lease was written to disk"
    assert not (tmp_path / "prefect.db").exists(), "it kept its state in SQLite"
    assert "ERROR" not in log.read_text()
    for secret in ("PREFECT_PASSWORD", "PREFECT_DATABASE_PASSWORD"):
        assert VALUES[secret] not in log.read_text()


def _require_pools_probe(api: str, login: str) -> None:
    """The workers' health check: no for a pool that isn't there, for a wrong password, else yes."""
    environment = {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": login}
    command = [sys.executable, str(STACK / "prepare.py"), "pool", "handoff-build"]

    def probe(**changed: str) -> subprocess.CompletedProcess[str]:
        variables = {**environment, **changed}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    assert "404. 'handoff deploy' makes it" in probe().stderr
    assert (
        status_of(f"{api}/work_pools/", login, {"name": "handoff-build", "type": "process"})[0]
        == 201
    )
    assert probe().returncode == 0
    wrong = probe(PREFECT_API_AUTH_STRING="handoff:wrong")
    assert wrong.returncode == 1
    assert "401. PREFECT_API_AUTH_STRING is wrong" in wrong.stderr
    assert probe(PREFECT_API_URL=f"http://127.0.0.1:{free_port()}/api").returncode == 1


def _hold_a_slot(api: str, login: str) -> None:
    made = status_of(f"{api}/v2/concurrency_limits/", login, {"name": "gpu", "limit": 1})
    assert made[0] == 201, made
    slot = {"names": ["gpu"], "slots": 1, "mode": "concurrency", "lease_duration": 60}
    taken = status_of(f"{api}/v2/concurrency_limits/increment-with-lease", login, slot)
    assert taken[0] == 200, taken


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with served_s3(os.environ.get("HANDOFF_TEST_S3", "")) as settings:
        yield settings


def _mlflow_here(postgres: Postgres, s3: Mapping[str, str], port: int) -> dict[str, str]:
    return {
        **s3, "PGHOST": "127.0.0.1", "PGPORT": str(postgres.port),
        "MLFLOW_AUTH_CONFIG_PATH": str(STACK / "images" / "basic_auth.ini"),
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{port}",
    }  # fmt: skip


def test_the_bucket_is_made_once_and_found_again(s3: dict[str, str]) -> None:
    import boto3

    for _ in range(2):
        done = run_prepare("bucket", s3)
        assert done.returncode == 0, done.stderr
    client = boto3.client(
        "s3", endpoint_url=s3["AWS_ENDPOINT_URL"], region_name=s3["AWS_DEFAULT_REGION"],
        aws_access_key_id=s3["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=s3["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    assert "stack" in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}


def test_mlflow_of_compose_refuses_to_start_without_an_administrators_password(
    postgres: Postgres, s3: dict[str, str], tmp_path: Path
) -> None:
    port = free_port()
    for missing in ("MLFLOW_AUTH_ADMIN_PASSWORD", "MLFLOW_FLASK_SERVER_SECRET_KEY"):
        here = {**_mlflow_here(postgres, s3, port), missing: ""}
        command = command_of(
            "mlflow", {"--host=0.0.0.0": "--host=127.0.0.1", "--port=5000": f"--port={port}"}
        )
        refused = subprocess.run(
            command, env=environment_of("mlflow", here), cwd=tmp_path, capture_output=True,
            text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        assert refused.returncode != 0
        assert missing in refused.stderr


def test_mlflow_of_compose_lets_workers_register_and_strangers_see_nothing(
    postgres: Postgres, s3: dict[str, str], tmp_path: Path
) -> None:
    assert run_prepare("bucket", s3).returncode == 0
    port = free_port()
    command = command_of(
        "mlflow", {"--host=0.0.0.0": "--host=127.0.0.1", "--port=5000": f"--port={port}"}
    )
    server = f"http://127.0.0.1:{port}"
    environment = environment_of("mlflow", _mlflow_here(postgres, s3, port))
    search = f"{server}/api/2.0/mlflow/registered-models/search"
    log = tmp_path / "log"
    with running(command, environment, f"{server}/health", log):
        worker = f"handoff:{VALUES['MLFLOW_PASSWORD']}"
        admin = f"admin:{VALUES['MLFLOW_ADMIN_PASSWORD']}"
        assert status_of(search)[0] == 401
        assert status_of(search, worker)[0] == 401  # not there yet
        assert status_of(search, admin)[0] == 200
        for _ in range(2):
            made = run_prepare("mlflow-user", {"MLFLOW_TRACKING_URI": server})
            assert made.returncode == 0, made.stderr
        other = {"MLFLOW_TRACKING_URI": server, "MLFLOW_TRACKING_PASSWORD": "another-password"}
        assert "doesn't take its password (401)" in run_prepare("mlflow-user", other).stderr
        assert status_of(search, worker)[0] == 200
        assert status_of(search, "handoff:wrong")[0] == 401
        _require_rights(server, worker, admin)
        _require_artifacts(server, worker, tmp_path)
    for secret in ("MLFLOW_PASSWORD", "MLFLOW_ADMIN_PASSWORD", "MLFLOW_DATABASE_PASSWORD"):
        assert VALUES[secret] not in log.read_text()


def _require_rights(server: str, worker: str, admin: str) -> None:
    """A worker changes what it made; a reader only sees it; neither makes users."""
    api = f"{server}/api/2.0/mlflow"
    reader = {"username": "reader", "password": "readers-password"}
    assert status_of(f"{api}/users/create", worker, reader)[0] == 403
    assert status_of(f"{api}/users/create", admin, reader)[0] == 200
    login = "reader:readers-password"
    assert status_of(f"{api}/registered-models/create", worker, {"name": "resnet18"})[0] == 200
    assert status_of(f"{api}/registered-models/get?name=resnet18", login)[0] == 200
    tag = {"name": "resnet18", "key": "seen", "value": "yes"}
    assert status_of(f"{api}/registered-models/set-tag", login, tag)[0] == 403
    assert status_of(f"{api}/registered-models/set-tag", worker, tag)[0] == 200


def _require_artifacts(server: str, worker: str, folder: Path) -> None:
    """A worker's client sends a file through the server to S3, and gets it back."""
    user, _, password = worker.partition(":")
    variables = {
        "MLFLOW_TRACKING_URI": server, "MLFLOW_TRACKING_USERNAME": user,
        "MLFLOW_TRACKING_PASSWORD": password, "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip
    program = (
        "import mlflow, pathlib; c = mlflow.MlflowClient();"
        "e = c.create_experiment('handoff'); r = c.create_run(e).info.run_id;"
        "c.log_text(r, 'packages', 'note.txt');"
        "p = mlflow.artifacts.download_artifacts(run_id=r, artifact_path='note.txt');"
        "assert pathlib.Path(p).read_text() == 'packages';"
        "assert c.get_run(r).info.artifact_uri.startswith('mlflow-artifacts:')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, cwd=folder,
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_s3_address_of_compose_is_a_service_of_compose() -> None:
    named = services()["build"]["environment"]
    for key in ("AWS_ENDPOINT_URL", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        parts = urlsplit(named[key])
        assert parts.hostname in services()
        assert any(
            str(port).endswith(f":{parts.port}") for port in services()[parts.hostname]["ports"]
        )
