"""The served stack: real servers, brought up, killed, mended and brought down."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.release.signing import public_key_of
from handoff.infra.prefect.stack_settings import read_stack_settings
from handoff.infra.stack import postgres
from handoff.infra.stack.layout import StackLayout
from handoff.infra.stack.worker import own_temporary_folder, read_cores
from tests.prefect_server import free_port, prefect_server
from tests.served_stack import Home, command_line, foreign_postgres, handoff_home, wait_until

_FLOW = """
import os, time
from pathlib import Path
from prefect import flow

@flow
def wait_long():
    Path(os.environ["WAITS_HERE"]).write_text(str(os.getpid()))
    time.sleep(600)

@flow
def wait_for_word():
    folder = Path(os.environ["WAITS_HERE"]).parent
    (folder / "begun").touch()
    while not (folder / "word").exists():
        time.sleep(0.2)
"""
_LOGIN = "handoff:a-password-of-prefects"
_SERVICES = {"postgres", "prefect", "mlflow", "control", "build"}


@pytest.fixture
def fresh() -> Iterator[Home]:
    """A home in which nothing was started yet."""
    with handoff_home({}) as home:
        yield home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The home whose stack is brought up and down; once for all tests."""
    try:
        postgres.find_programs("")
    except EnvironmentLacking as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("flow")
    (folder / "waiting_flow.py").write_text(_FLOW)
    settings = {
        "PREFECT_SERVER_API_AUTH_STRING": _LOGIN,
        "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
        "WAITS_HERE": str(folder / "process"),
    }
    with handoff_home(settings) as made:
        yield made


@pytest.fixture(scope="module")
def running(home: Home) -> dict[str, int]:
    """The processes of its services: it was brought up for tests that leave it as it is."""
    return home.processes()


def _get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=5) as answer:
        return answer.read()


@pytest.mark.server
def test_every_service_is_healthy_and_no_password_is_where_others_can_read_it(
    home: Home, running: dict[str, int]
) -> None:
    assert set(running) == _SERVICES
    assert _get(f"http://127.0.0.1:{home.prefect_port}/api/health") == b"true"
    assert _get(f"http://127.0.0.1:{home.mlflow_port}/health") == b"OK"
    assert postgres.is_ready(home.place)
    again = home.up()
    assert again.returncode == 0
    assert "The stack runs already." in again.stdout
    assert home.processes() == running
    assert home.run("status").returncode == 0

    lines = home.run("up", "--print-environment").stdout
    assert f"export PREFECT_API_URL=http://127.0.0.1:{home.prefect_port}/api\n" in lines
    assert lines == home.place.environment.read_text()
    assert home.place.environment.stat().st_mode & 0o777 == 0o600
    assert home.place.folder.stat().st_mode & 0o777 == 0o700
    password = (home.place.folder / "postgres.password").read_text().strip().split(":")[-1]
    assert len(password) > 30
    for secret in (password, _LOGIN.partition(":")[2]):
        assert not [line for line in map(command_line, psutil.pids()) if secret in " ".join(line)]
        assert not [log for log in home.place.logs.iterdir() if secret in log.read_text()]


@pytest.mark.server
def test_machines_may_join_before_anything_was_released(
    home: Home, running: dict[str, int]
) -> None:
    assert running
    signing = json.loads(home.run("keys", "show", "--json").stdout)["signing"]
    shared = read_stack_settings(f"http://127.0.0.1:{home.prefect_port}/api", _LOGIN)
    (pem,) = shared.trusted
    assert public_key_of(pem.encode(), "shared").keyid == signing
    assert shared.signs == pem


@pytest.mark.server
def test_prefects_login_is_asked_for(home: Home, running: dict[str, int]) -> None:
    assert running
    api = f"http://127.0.0.1:{home.prefect_port}/api"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _get(f"{api}/admin/version")
    login = {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": "handoff:wrong"}
    answer = home.run("worker", **login)
    assert answer.returncode == 64
    assert "The Prefect server doesn't let this worker in" in answer.stderr
    assert "wrong" not in answer.stderr


@pytest.mark.server
def test_a_running_stack_refuses_other_options(home: Home, running: dict[str, int]) -> None:
    assert running
    other = home.run("up", "--prefect-port", str(free_port()))
    assert other.returncode == 64
    assert "The stack runs already, with other options" in other.stderr
    assert "handoff down" in other.stderr


@pytest.mark.server
@pytest.mark.long
def test_after_down_it_comes_up_from_a_fresh_shell_as_it_was_set_up(
    home: Home, tmp_path: Path
) -> None:
    home.processes()
    assert home.run("down").returncode == 0
    login = "PREFECT_SERVER_API_AUTH_STRING"
    fresh = replace(home, settings={n: v for n, v in home.settings.items() if n != login})
    other = fresh.run("up", HANDOFF_STORE=str(tmp_path / "other"))
    assert other.returncode == 64
    assert f"HANDOFF_STORE is {tmp_path / 'other'}, and was {home.folder / 'store'}" in other.stderr
    assert "--use kept" in other.stderr
    up = fresh.run("up")
    assert up.returncode == 0, up.stderr
    assert f"As it was set up: store {home.folder / 'store'}" in up.stderr
    assert f"Its store: {home.folder / 'store'}" in up.stdout
    assert _LOGIN not in up.stdout + up.stderr
    with pytest.raises(urllib.error.HTTPError, match="401"):
        _get(f"http://127.0.0.1:{home.prefect_port}/api/admin/version")
    assert fresh.run("up", HANDOFF_STORE=str(tmp_path / "other")).returncode == 64


@pytest.mark.server
@pytest.mark.parametrize(
    "killed",
    [
        "build",
        # `make outages` kills each while releases run.
        pytest.param("prefect", marks=pytest.mark.long),
        pytest.param("mlflow", marks=pytest.mark.long),
    ],
)
def test_a_killed_service_comes_back_by_itself(home: Home, killed: str) -> None:
    before = home.processes()
    line = command_line(before[killed])
    os.kill(before[killed], signal.SIGKILL)

    def is_started() -> bool:
        """Ask what takes less than `handoff status`."""
        others = (process for process in psutil.pids() if process != before[killed])
        return any(command_line(process) == line for process in others)

    wait_until("it was started again", is_started)
    wait_until("all healthy again", lambda: home.run("status").returncode == 0, 120)
    after = home.processes()
    assert after[killed] != before[killed]
    assert all(after[name] == before[name] for name in ("postgres", "control"))


@pytest.mark.server
@pytest.mark.long
def test_down_ends_a_running_flow_too_and_nothing_that_it_did_not_start(
    home: Home, fresh: Home, tmp_path: Path
) -> None:
    home.processes()
    pid_file = Path(home.settings["WAITS_HERE"])
    _start_run(f"http://127.0.0.1:{home.prefect_port}/api", "waiting_flow.wait_long")
    wait_until("the flow runs", lambda: pid_file.exists() and bool(pid_file.read_text()))
    flow = psutil.Process(int(pid_file.read_text()))
    with (
        prefect_server(tmp_path / "prefect") as api,
        foreign_postgres(fresh.folder) as (other, _),
    ):
        # Of the light flows, which aren't waited for.
        down = home.run("down")
        assert down.returncode == 0, down.stderr
        assert set(down.stdout.partition(".")[0].removeprefix("Stopped ").split(", ")) == _SERVICES
        assert not flow.is_running()
        assert home.left() == []
        assert other.status() != psutil.STATUS_ZOMBIE
        assert _get(f"{api}/health") == b"true"
    again = home.run("down")
    assert (again.returncode, again.stdout) == (0, "Nothing runs that 'handoff up' started here.\n")
    assert home.run("status").returncode == 1


@pytest.mark.server
@pytest.mark.long
def test_down_lets_what_builds_finish_and_takes_nothing_more_meanwhile(home: Home) -> None:
    home.processes()
    api = f"http://127.0.0.1:{home.prefect_port}/api"
    folder = Path(home.settings["WAITS_HERE"]).parent
    run = _start_run(api, "waiting_flow.wait_for_word", "handoff-build")
    wait_until("the flow runs", (folder / "begun").exists)
    with ThreadPoolExecutor(1) as pool:
        down = pool.submit(home.run, "down")
        with _client(api) as client:
            wait_until("pauses", lambda: client.read_work_pool("handoff-build").is_paused)
            later = _start_run(api, "waiting_flow.wait_for_word", "handoff-build")
            time.sleep(3)
            assert not down.done()
            assert client.read_flow_run(run).state.name == "Running"
            assert client.read_flow_run(later).state.name in ("Scheduled", "Pending", "Late")
        (folder / "word").touch()
        answer = down.result()
    assert answer.returncode == 0, answer.stderr
    assert f"Waiting for 1 flow run ({run})" in answer.stderr
    assert "Ended before" not in answer.stderr
    assert home.left() == []
    home.processes()
    with _client(api) as client:
        assert client.read_flow_run(run).state.name == "Completed"
        assert not client.read_work_pool("handoff-build").is_paused
        done = lambda: client.read_flow_run(later).state.name == "Completed"  # noqa: E731
        wait_until("what came meanwhile is taken", done)

    (folder / "word").unlink()
    (folder / "begun").unlink()
    run = _start_run(api, "waiting_flow.wait_for_word", "handoff-build")
    wait_until("the flow runs", (folder / "begun").exists)
    answer = home.run("down", "--timeout", "1")
    assert answer.returncode == 0, answer.stderr
    assert f"Ended before they were done: {run}" in answer.stderr
    assert home.left() == []


def _client(api: str) -> Any:
    from prefect.client.orchestration import SyncPrefectClient

    return SyncPrefectClient(api, auth_string=_LOGIN)


def _start_run(api: str, entrypoint: str, pool: str = "handoff-control") -> Any:
    with _client(api) as client:
        flow = client.create_flow_from_name(entrypoint.rpartition(".")[2].replace("_", "-"))
        deployment = client.create_deployment(
            flow_id=flow, name="waiting", work_pool_name=pool, entrypoint=entrypoint
        )
        return client.create_flow_run_from_deployment(deployment).id


@pytest.mark.server
@pytest.mark.long
def test_a_stack_whose_supervisor_was_killed_is_brought_down_and_comes_up_again(home: Home) -> None:
    before = home.processes()
    os.kill(int(home.place.process_file.read_text()), signal.SIGKILL)
    down = home.run("down")
    assert down.returncode == 0, down.stderr
    assert home.left() == []
    assert not any(command_line(process) for process in before.values())

    before = home.processes()
    os.kill(int(home.place.process_file.read_text()), signal.SIGKILL)
    after = home.processes()
    assert not set(before.values()) & set(after.values())


@pytest.mark.server
@pytest.mark.long
def test_a_postgresql_and_an_s3_endpoint_for_trying_out_may_be_named(
    home: Home,  # skips without PostgreSQL
    fresh: Home,
) -> None:
    s3_port = str(free_port())
    with foreign_postgres(fresh.folder / "other") as (process, place):
        password = (place.folder / "postgres.password").read_text().strip().split(":")[-1]
        address = postgres.database_url(place, "postgresql+asyncpg", "postgres")
        named = {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": address.replace("@", f":{password}@"),
        }  # fmt: skip
        answer = fresh.up("--s3", "--s3-port", s3_port, **named)
        assert answer.returncode == 0, answer.stderr
        assert "is gone after 'handoff down'" in answer.stderr
        assert not [line for line in map(command_line, psutil.pids()) if password in " ".join(line)]
        exported = fresh.run("up", "--print-environment").stdout
        assert "export HANDOFF_STORE=s3://handoff/releases\n" in exported
        assert f"export AWS_ENDPOINT_URL=http://127.0.0.1:{s3_port}\n" in exported
        assert "mlflow" in _databases(place)
        assert not fresh.place.database.exists()
        down = fresh.run("down")
        assert "s3" in down.stdout
        assert "postgres" not in down.stdout
        assert process.status() != psutil.STATUS_ZOMBIE


def _databases(place: StackLayout) -> list[str]:
    with postgres.open_cursor(place) as cursor:
        cursor.execute("select datname from pg_database")
        return [row[0] for row in cursor.fetchall()]


def test_a_port_in_use_is_named_before_anything_starts(fresh: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", fresh.mlflow_port))
        taken.listen()
        answer = fresh.up("--sqlite")
    assert answer.returncode == 64
    assert f"Port {fresh.mlflow_port}, for MLflow, can't be used" in answer.stderr
    assert "--mlflow-port" in answer.stderr
    assert fresh.left() == []


@pytest.mark.parametrize(
    "login", [{}, {"PREFECT_SERVER_API_AUTH_STRING": "user:long-enough-for-all"}]
)
def test_servers_without_a_login_are_not_shown_to_the_network(
    fresh: Home, login: dict[str, str]
) -> None:
    answer = fresh.up("--sqlite", "--host", "0.0.0.0", **login)
    assert answer.returncode == 64
    assert "Servers that ask for no login are not shown to the network" in answer.stderr
    assert "no MLFLOW_AUTH_ADMIN_PASSWORD" in answer.stderr
    assert fresh.left() == []


def test_without_postgresql_it_says_how_to_get_one(fresh: Home) -> None:
    answer = fresh.up(HANDOFF_POSTGRES=str(fresh.folder))
    assert answer.returncode == 1
    assert "There is no PostgreSQL for Prefect and MLflow" in answer.stderr
    assert "apt-get install postgresql" in answer.stderr
    assert "--sqlite" in answer.stderr
    assert fresh.left() == []


@pytest.mark.parametrize(
    ("address", "got"), [("mysql://u:secret@host/d", "mysql"), ("secret", "no address")]
)
def test_a_database_of_another_kind_is_refused_without_showing_its_password(
    fresh: Home, address: str, got: str
) -> None:
    answer = fresh.up(PREFECT_SERVER_DATABASE_CONNECTION_URL=address)
    assert answer.returncode == 64
    assert f"names no PostgreSQL: expected postgresql+asyncpg://user@host/database, got {got}" in (
        answer.stderr
    )
    assert "secret" not in answer.stderr


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({}, 64, "A worker needs a Prefect server"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, 1, "No Prefect server answers"),
    ],
)
def test_a_worker_without_a_server_says_so(
    fresh: Home, settings: dict[str, str], code: int, said: str
) -> None:
    answer = fresh.run("worker", **settings)
    assert answer.returncode == code
    assert said in answer.stderr


def test_temporary_files_are_not_put_where_another_user_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = own_temporary_folder()
    assert folder.parent == tmp_path
    assert own_temporary_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(EnvironmentLacking, match="is somebody else's"):
        own_temporary_folder()


def test_cores_are_named_by_numbers_and_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert read_cores("0-3,8") == {0, 1, 2, 3, 8}
    for bad, said in (("fast", "names no cores"), ("3-1", "aren't to be had"), ("12", "aren't")):
        with pytest.raises(UsageProblem, match=said):
            read_cores(bad)
