"""Runs that ended long ago leave the Prefect server's database; others stay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import yaml

from handoff.infra.stack.plan import RETENTION
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.poster import Poster
from tests.docs.pages import ROOT
from tests.infra.triggers.conftest import deployed_server
from tests.prefect_server import client_of
from tests.served_stack import wait_until

# Each second, in place of each hour.
SOON = {"PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "1"}


@pytest.mark.server
@pytest.mark.long
def test_a_run_that_ended_a_hundred_days_ago_is_removed_and_others_are_kept(tmp_path: Path) -> None:
    from prefect import states
    from prefect.exceptions import ObjectNotFound

    with (
        deployed_server(tmp_path, settings={**RETENTION, **SOON}) as api,
        client_of(api) as client,
    ):
        poster = Poster(client)
        old, ended, waiting = (
            poster.post(Arrival(f"/data/{name}", name, "", "c0ffee1", "ada")).id
            for name in ("old", "ended", "waiting")
        )
        for run in (old, ended):
            client.set_flow_run_state(run, states.Completed(), force=True)
        _ended_days_ago(tmp_path / "prefect.db", old, 100)
        _ended_days_ago(tmp_path / "prefect.db", ended, 80)

        def is_gone(run: UUID) -> bool:
            try:
                return client.read_flow_run(run) is None
            except ObjectNotFound:
                return True

        wait_until("the old run is gone", lambda: is_gone(old))
        assert not is_gone(ended)
        assert not is_gone(waiting)


def _ended_days_ago(database: Path, run: UUID, days: int) -> None:
    ended = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.000000")
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        changed = connection.execute(
            "update flow_run set end_time = ? where id in (?, ?)", (ended, str(run), run.hex)
        )
        assert changed.rowcount == 1
        connection.commit()


def test_servers_in_containers_keep_runs_as_long() -> None:
    ((name, value),) = RETENTION.items()
    containers = ROOT / "infra" / "containers"
    compose = yaml.safe_load((containers / "compose.yaml").read_text())
    assert compose["services"]["prefect"]["environment"][name] == value
    pods = (containers / "kubernetes" / "base" / "prefect.yaml").read_text()
    assert f'{{name: {name}, value: "{value}"}}' in pods
