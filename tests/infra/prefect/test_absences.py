"""Why a worker left: kept on the server, shown on every machine, forgotten when it is back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.infra.prefect.absences import Absence, clear_absence, read_absences, report_absence
from handoff.infra.prefect.pools import online_workers
from handoff.infra.settings import Settings, read_settings
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_client

_POOL = "handoff-build"
_LACKING = EnvironmentLacking(
    "this machine can't work", expected="g++", got="compiler: none \x1b[31m", remedy="Install g++"
)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with the pool of builds."""
    from handoff.infra.prefect.pools import ensure_pools

    with prefect_client(tmp_path_factory.mktemp("prefect")) as client:
        ensure_pools(client, [_POOL])
        yield client


@pytest.fixture
def settings(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("PREFECT_API_URL", str(client.api_url).rstrip("/"))
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    return read_settings()


def test_a_worker_that_leaves_is_gone_at_once_and_forgotten_when_it_is_back(
    client: Any, settings: Settings
) -> None:
    for name in ("build 2/3", "build-1"):
        client.send_worker_heartbeat(_POOL, name.replace("/", "-"), heartbeat_interval_seconds=30)
    absence = Absence.of(_POOL, "build 2-3", _LACKING)
    report_absence(settings, absence)
    assert read_absences(client) == [absence]
    assert online_workers(client)[_POOL] == ["build-1"]
    # Reported again, it left when it did.
    later = Absence.of(_POOL, "build 2-3", _LACKING, absence.since)
    report_absence(settings, later)
    assert [one.since for one in read_absences(client)] == [absence.since]
    clear_absence(settings, _POOL, "build 2-3")
    clear_absence(settings, _POOL, "build 2-3")
    assert read_absences(client) == []


def test_what_nobody_heard_of_for_a_day_and_what_somebody_else_wrote_is_left_out(
    client: Any, settings: Settings
) -> None:
    from prefect.client.schemas.actions import VariableCreate

    old = replace(Absence.of(_POOL, "old", _LACKING), looked="2020-01-01T00:00:00+00:00")
    report_absence(settings, old)
    client.create_variable(VariableCreate(name="handoff-left-0", value="by hand"))
    assert read_absences(client) == []


def test_doctor_on_any_machine_says_who_left_why_and_what_to_do(
    client: Any, settings: Settings
) -> None:
    assert client
    report_absence(settings, Absence.of(_POOL, "build-9", _LACKING))
    answer = subprocess.run(
        [sys.executable, "-m", "handoff", "doctor", "--json"], capture_output=True, text=True,
        check=False, timeout=LIMIT_S, env={**os.environ, "HANDOFF_HOME": str(settings.home)},
    )  # fmt: skip
    (check,) = [one for one in json.loads(answer.stdout)["checks"] if one["name"] == "workers"]
    assert check["found"].startswith("build-9 on ")
    assert "compiler: none" in check["found"]
    assert check["remedy"] == "Install g++"
    assert "\x1b" not in answer.stdout + check["found"]


def test_a_server_that_does_not_answer_is_no_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    gone = read_settings()
    report_absence(gone, Absence.of(_POOL, "build-9", _LACKING))
    clear_absence(gone, _POOL, "build-9")
