"""The notifier as a service of the stack: there where somebody is to be notified, and healthy."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.infra.notifications.outbox import Memory, memory_file, write_memory
from handoff.infra.settings import read_served_settings, read_settings
from handoff.infra.stack.layout import Choices, StackLayout
from handoff.infra.stack.logins import read_logins
from handoff.infra.stack.plan import Plan, make_plan, resolve_stack
from handoff.infra.stack.status import is_healthy
from tests.infra.notifications.receivers import TOKEN
from tests.infra.stack.stack_files import STACK


def plan(home: Path) -> Plan:
    served = read_served_settings()
    stack = resolve_stack(Choices(sqlite=True), read_settings(), served)
    return make_plan(stack, StackLayout(home), served, read_logins(served))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NOTIFY", "FORGE", "FORGE_TOKEN", "STORE"):
        monkeypatch.delenv(f"HANDOFF_{name}", raising=False)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["HANDOFF_NOTIFY", "HANDOFF_FORGE"])
def test_up_runs_it_where_somebody_is_to_be_told_and_gives_the_token_to_it_alone(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "tell" not in [one.name for one in plan(home).services]
    monkeypatch.setenv(name, "github")
    monkeypatch.setenv("HANDOFF_FORGE_TOKEN", TOKEN)
    made = plan(home)
    (service,) = [one for one in made.services if one.name == "tell"]
    assert [one.name for one in made.services if one.keeps == "token"] == ["tell"]
    assert service.stage == max(one.stage for one in made.services), "it is stopped first"
    assert service.environment["PREFECT_API_URL"] == made.stack.prefect_api
    assert all(TOKEN not in str(one) for one in made.services)
    assert TOKEN not in str(made.client)


def test_it_is_healthy_when_it_has_looked_since_its_start_and_lately(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_NOTIFY", "slack-webhook/team")
    made, place, now = plan(home), StackLayout(home), time.time()
    (service,) = [one for one in made.services if one.name == "tell"]
    assert not is_healthy(service, made.stack, place, "", now - 60)
    write_memory(memory_file(home), Memory(looked=now - 10))
    assert is_healthy(service, made.stack, place, "", now - 60)
    assert not is_healthy(service, made.stack, place, "", now - 5)
    write_memory(memory_file(home), replace(Memory(), looked=now - 400))
    assert not is_healthy(service, made.stack, place, "", now - 600)


def test_a_container_of_it_is_asked_by_its_last_look(home: Path) -> None:
    def asked() -> tuple[int, str]:
        command = [sys.executable, str(STACK / "prepare.py"), "told", "300"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    assert asked()[0] == 1
    write_memory(memory_file(home), Memory(looked=time.time() - 10))
    assert asked()[0] == 0
    write_memory(memory_file(home), Memory(looked=time.time() - 400))
    code, text = asked()
    assert (code, "it looked 4" in text) == (1, True)
