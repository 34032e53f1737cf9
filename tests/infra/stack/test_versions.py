"""The two dependencies that are held back, because what newer ones break is silent."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server


def _post(address: str, plain: object) -> Any:
    request = urllib.request.Request(
        address, json.dumps(plain).encode(), {"content-type": "application/json"}
    )
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            # The server's SQLite was busy, which Prefect's own client answers in the same way.
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_the_fastapi_here_can_load_prefects_server() -> None:
    # From 0.155 on: TypeError: Body() got an unexpected keyword argument 'min_items'.
    from prefect.server.api import server

    assert server.create_app is not None


# In 'make test', test_the_schedule_makes_runs_at_the_time_zones_own_hour fails just as this does.
@pytest.mark.server
@pytest.mark.long
def test_the_sqlalchemy_here_lets_a_cron_schedule_create_runs(tmp_path: Path) -> None:
    # With 2.1 the scheduler's bulk insert fails in the server's log, and no run ever appears.
    with prefect_server(tmp_path) as address:
        flow = _post(f"{address}/flows/", {"name": "nightly"})
        schedule = {"schedule": {"cron": "0 2 * * *", "timezone": "UTC"}, "active": True}
        deployment = {"name": "night", "flow_id": flow["id"], "schedules": [schedule]}
        _post(f"{address}/deployments/", deployment)
        deadline = time.monotonic() + LIMIT_S
        runs: list[Any] = []
        while not runs and time.monotonic() < deadline:
            runs = _post(
                f"{address}/flow_runs/filter",
                {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}},
            )
            time.sleep(0.5)
    assert runs, "no SCHEDULED run appeared within 240 s"
    starts = datetime.fromisoformat(runs[0]["expected_start_time"]).astimezone(UTC)
    assert (starts.hour, starts.minute) == (2, 0)
