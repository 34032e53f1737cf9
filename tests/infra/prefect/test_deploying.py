"""`handoff deploy`, against a real Prefect server: what it holds, once and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from handoff.flows.names import RELEASE
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server

# Prefect looks for what is to be scheduled once a minute.
_SCHEDULED_LIMIT_S = 150.0
_CRON = ("--cron", "15 3 * * *", "--time-zone", "Europe/Berlin")


def deploy(api: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `handoff deploy` as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "handoff", "deploy", *arguments],
        env={**os.environ, "PREFECT_API_URL": api, "HANDOFF_HOME": str(home)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def deployed(api: str, home: Path) -> dict[str, str]:
    """Deploy, and return the deployments' ids by their names."""
    answer = deploy(api, home, *_CRON, "--json")
    assert answer.returncode == 0, answer.stderr
    return {one["name"]: one["id"] for one in json.loads(answer.stdout)["deployments"]}


@contextmanager
def listening(received: Queue[bytes]) -> Iterator[str]:
    """Give the address of a server that puts what is posted to it into `received`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that holds nothing yet."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[str]:
    """A server of a test's own, which holds nothing yet."""
    with prefect_server(tmp_path / "prefect") as address:
        yield address


@pytest.fixture(scope="module")
def ids(api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The ids of the deployments, which were applied once."""
    return deployed(api, tmp_path_factory.mktemp("home"))


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    """Prefect's own client."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api) as opened:
        yield opened


@pytest.mark.server
def test_to_deploy_again_changes_nothing_and_mends_what_was_changed_by_hand(
    api: str, ids: dict[str, str], client: Any, tmp_path: Path
) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    before = client.read_deployment_by_name(RELEASE)
    automations = {one.name: one for one in client.read_automations()}
    assert len(automations) == 5
    client.update_deployment(before.id, DeploymentUpdate(tags=[], description="Mine."))
    client.delete_automation(automations["handoff: repeat runs that crashed"].id)
    client.pause_automation(automations["handoff: end runs whose process is gone"].id)
    assert client.read_deployment_by_name(RELEASE).tags == []

    assert deployed(api, tmp_path) == ids
    after = client.read_deployment_by_name(RELEASE)
    assert (after.work_pool_name, after.tags) == (before.work_pool_name, before.tags)
    assert after.description == before.description
    assert after.job_variables == {"command": "python -P -m handoff.infra.prefect.flow_run"}
    restored = client.read_automations()
    assert sorted(one.name for one in restored) == sorted(automations)
    assert all(one.enabled for one in restored)
    assert len(client.read_deployment_by_name("recompile/handoff").schedules) == 1


def schedules(client: Any, name: str) -> list[tuple[Any, str, str, bool]]:
    """Return id, cron line, time zone and whether it counts, of each schedule."""
    return sorted(
        (one.id, one.schedule.cron, one.schedule.timezone, one.active)
        for one in client.read_deployment_by_name(name).schedules
    )


@pytest.mark.server
@pytest.mark.long
def test_a_schedule_and_a_pause_that_somebody_set_stay_until_they_are_asked_about(
    own_api: str, tmp_path: Path
) -> None:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    night, resume = "recompile/handoff", "resume/handoff"

    def deploy_output(*arguments: str) -> str:
        answer = deploy(own_api, tmp_path, *arguments)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    assert "the nightly runs at 0 2 * * * UTC" in deploy_output()
    with SyncPrefectClient(own_api) as client:
        held = client.read_deployment_by_name(night)
        cron = CronSchedule(cron="30 4 * * 1-5", timezone="Asia/Tokyo")
        client.update_deployment_schedule(held.id, held.schedules[0].id, schedule=cron)
        client.pause_deployment(held.id)
        other = client.read_deployment_by_name(resume)
        client.update_deployment_schedule(other.id, other.schedules[0].id, active=False)
        hourly = DeploymentScheduleCreate(schedule=CronSchedule(cron="0 * * * *"))
        client.create_deployment_schedules(other.id, [hourly])
        before = (schedules(client, night), schedules(client, resume))
        assert [row[1:] for row in before[0]] == [("30 4 * * 1-5", "Asia/Tokyo", True)]

        output = deploy_output()
        assert (schedules(client, night), schedules(client, resume)) == before
        assert client.read_deployment_by_name(night).paused
        assert "the nightly runs at 30 4 * * 1-5 Asia/Tokyo" in output
        assert "Somebody paused recompile/handoff" in output

        # What is given on purpose changes that, and nothing else.
        deploy_output("--time-zone", "Europe/Berlin")
        assert [row[1:] for row in schedules(client, night)] == [
            ("30 4 * * 1-5", "Europe/Berlin", True)
        ]
        deploy_output("--cron", "15 3 * * *")
        assert [row[1:] for row in schedules(client, night)] == [
            ("15 3 * * *", "Europe/Berlin", True)
        ]
        assert client.read_deployment_by_name(night).paused
        assert schedules(client, resume) == before[1]

        # One that was taken away is no schedule to come back by itself.
        client.delete_deployment_schedule(held.id, schedules(client, night)[0][0])
        assert "never: it has no schedule" in deploy_output()
        assert schedules(client, night) == []

        deploy_output("--reset", "--cron", "0 5 * * *")
        assert [row[1:] for row in schedules(client, night)] == [("0 5 * * *", "UTC", True)]
        assert [row[1:] for row in schedules(client, resume)] == [("*/5 * * * *", "UTC", True)]
        assert not client.read_deployment_by_name(night).paused


@pytest.mark.server
@pytest.mark.long
def test_a_new_nightly_begins_by_the_time_zone_that_the_environment_names(
    own_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert "0 2 * * * America/New_York" in deploy(own_api, tmp_path).stdout
    # It is there now, so that another environment changes nothing.
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert "0 2 * * * America/New_York" in deploy(own_api, tmp_path).stdout


@pytest.mark.server
def test_the_schedule_makes_runs_at_the_time_zones_own_hour(
    ids: dict[str, str], client: Any
) -> None:
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId

    wanted = DeploymentFilter(id=DeploymentFilterId(any_=[ids["recompile/handoff"]]))
    deadline = time.monotonic() + _SCHEDULED_LIMIT_S
    while not (runs := client.read_flow_runs(deployment_filter=wanted)):
        assert time.monotonic() < deadline, "no run is scheduled"
        time.sleep(1)
    assert {str(run.deployment_id) for run in runs} == {ids["recompile/handoff"]}
    assert {run.state.type.value for run in runs} == {"SCHEDULED"}
    assert {"handoff", "handoff-resume"} <= set(runs[0].tags)
    begins = [run.expected_start_time.astimezone(ZoneInfo("Europe/Berlin")) for run in runs]
    assert {(at.hour, at.minute) for at in begins} == {(3, 15)}


@pytest.mark.server
def test_a_night_may_begin_without_any_parameters(ids: dict[str, str], client: Any) -> None:
    # As the schedule begins it.
    assert client.create_flow_run_from_deployment(ids["recompile/handoff"]).id
    assert client.create_flow_run_from_deployment(ids["collect-garbage/handoff"]).id


@pytest.mark.server
def test_the_parameters_have_a_form_which_refuses_what_is_wrong(
    ids: dict[str, str], client: Any
) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    form = client.read_deployment(ids[RELEASE]).parameter_openapi_schema
    delivery = form["definitions"]["ReleaseParameters"]["properties"]["delivery"]
    assert (delivery["maxLength"], form["required"]) == (2000, ["parameters"])
    named = {"delivery": "/d", "model": "No Name"}
    wrongs: list[dict[str, Any]] = [{"parameters": {}}, {"parameters": named}]
    for wrong in wrongs:
        with pytest.raises(PrefectHTTPStatusError, match="409 Conflict"):
            client.create_flow_run_from_deployment(ids[RELEASE], parameters=wrong)
    good = {"parameters": {"delivery": "/d", "model": "name"}}
    assert client.create_flow_run_from_deployment(ids[RELEASE], parameters=good).id


@pytest.mark.server
def test_a_night_that_failed_is_reported_through_the_block_that_was_named(
    api: str, ids: dict[str, str], client: Any, tmp_path: Path
) -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Completed, Failed

    received: Queue[bytes] = Queue()
    with listening(received) as address, temporary_settings({PREFECT_API_URL: api}):
        block = CustomWebhookNotificationBlock(
            name="team", url=address, json_data={"text": "{{subject}}: {{body}}"},
            allow_private_urls=True,
        )  # fmt: skip
        block.save("team", overwrite=True)
        assert deploy(api, tmp_path, *_CRON, "--notify", "custom-webhook/team").returncode == 0
        nightly = ids["recompile/handoff"]
        well = client.create_flow_run_from_deployment(nightly, name="a good night")
        client.set_flow_run_state(well.id, Completed(), force=True)
        bad = client.create_flow_run_from_deployment(nightly, name="a bad night")
        client.set_flow_run_state(bad.id, Failed(message="1 of 3 models"), force=True)
        text = json.loads(received.get(timeout=LIMIT_S))["text"]
    assert text == "Handoff: the nightly Failed: a bad night: 1 of 3 models"
    assert received.empty()


@pytest.mark.server
def test_a_block_that_is_not_there_is_a_sentence(
    api: str, ids: dict[str, str], tmp_path: Path
) -> None:
    assert ids
    answer = deploy(api, tmp_path, *_CRON, "--notify", "slack-webhook/nobody")
    assert answer.returncode == 64
    assert "has no such block" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "cuda-sm1"), "that is no target: expected one of cpu-"),
        (
            ("--target", "cuda-sm80+sm90"),
            "that is no target of one pool: expected a target for one GPU, got cuda-sm80+sm90. "
            "Write --target cuda-sm80 --target cuda-sm90: ",
        ),
        (("--cron", "at two"), "that is no schedule: expected a cron line"),
        (("--time-zone", "Berlin"), "got '0 2 * * *' in 'Berlin'"),
    ],
)
def test_what_cant_be_deployed_is_a_sentence(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    answer = deploy("http://127.0.0.1:9/api", tmp_path, *arguments)
    assert answer.returncode == 64
    assert answer.stderr.startswith("handoff: that is no ")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_server_that_cant_be_reached_is_a_sentence(tmp_path: Path) -> None:
    began = time.monotonic()
    answer = deploy("http://127.0.0.1:9/api", tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.startswith("handoff: the Prefect server can't be reached: expected")
    assert time.monotonic() - began < 60


def test_without_a_server_it_says_how_to_get_one(tmp_path: Path) -> None:
    answer = deploy("", tmp_path)
    assert answer.returncode == 1
    assert "deployments need a Prefect server" in answer.stderr
    assert "handoff up" in answer.stderr


def test_an_address_at_which_something_else_answers_is_reported(tmp_path: Path) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>\x1b[31mhi</html>")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        answer = deploy(f"http://127.0.0.1:{server.server_port}", tmp_path)
    finally:
        server.shutdown()
    assert answer.returncode == 1
    assert "no Prefect server: expected a JSON answer" in answer.stderr
    assert r"got <html>\x1b[31mhi</html>. Fix PREFECT_API_URL: it ends in /api" in answer.stderr
