"""The token for commit statuses: who sees it, and who never does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.infra.engine.environments import child_environment, service_environment
from handoff.infra.settings import (
    paths_kept_from_steps,
    read_forge_token,
    read_notification_settings,
)
from handoff.infra.stack.setup import differences, settings_of
from tests.infra.notifications.receivers import TOKEN


def test_the_token_reaches_what_tells_and_no_child_worker_or_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANDOFF_FORGE_TOKEN", TOKEN)
    children = [child_environment(stores=True, sources=True, keys=True), child_environment()]
    children += [child_environment(whole=True)]
    services = [service_environment(keeps) for keeps in ("little", "stores", "prefect", "all")]
    assert all(TOKEN not in one.values() for one in (*children, *services))
    assert service_environment("token")["HANDOFF_FORGE_TOKEN"] == TOKEN


def test_a_worker_that_is_started_by_hand_drops_the_token(tmp_path: Path) -> None:
    code = (
        "import sys; from handoff.infra.engine.environments import replace_process; "
        "look = 'import os; print(sorted(os.environ))'; "
        "replace_process([sys.executable, '-c', look], {'A': 'b'})"
    )
    environment = {**os.environ, "HANDOFF_FORGE_TOKEN": TOKEN, "HANDOFF_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "'A'" in ended.stdout
    assert "'HANDOFF_HOME'" in ended.stdout
    assert "FORGE" not in ended.stdout


def test_a_token_in_a_file_is_read_anew_and_closed_to_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANDOFF_FORGE_TOKEN", raising=False)
    assert read_forge_token(read_notification_settings()) == ""
    monkeypatch.setattr("tempfile.tempdir", None)
    file = Path("/run/secrets/handoff-forge")
    monkeypatch.setenv("HANDOFF_FORGE_TOKEN_FILE", str(file))
    assert file in paths_kept_from_steps()
    named = tmp_path / "token"
    monkeypatch.setenv("HANDOFF_FORGE_TOKEN_FILE", str(named))
    settings = read_notification_settings()
    with pytest.raises(EnvironmentLacking, match="No such file"):
        read_forge_token(settings)
    for token in (TOKEN, "another"):
        named.write_text(f"{token}\n")
        assert read_forge_token(settings) == token


def test_a_stack_keeps_whom_it_tells_and_shows_no_token() -> None:
    shell = {
        "HANDOFF_NOTIFY": "slack-webhook/team", "HANDOFF_FORGE": "github",
        "HANDOFF_FORGE_TOKEN": TOKEN, "PREFECT_UI_URL": "https://prefect.example.org",
    }  # fmt: skip
    kept = settings_of(shell, tries_out=False)
    assert {name: kept[name] for name in shell} == shell
    changes = differences({**kept, "HANDOFF_NOTIFY": "slack-webhook/other"}, kept)
    assert changes == ["HANDOFF_NOTIFY is slack-webhook/team, and was slack-webhook/other"]
    changes = differences({**kept, "HANDOFF_FORGE_TOKEN": "another"}, kept)
    assert changes == ["another HANDOFF_FORGE_TOKEN"]
