"""A Prefect server with the deployments that people hear of, and a block that notifies."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.poster import PostedRun, Poster
from tests.infra.notifications.receivers import TOKEN, Receiver, receiving
from tests.infra.triggers.conftest import deployed_server
from tests.limits import LIMIT_S
from tests.prefect_server import client_of


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API address of a server with releases and nights, and no worker."""
    with deployed_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    """Prefect's own client, of this process, too."""
    with client_of(api) as opened:
        yield opened


@pytest.fixture
def people() -> Iterator[Receiver]:
    """Whom messages reach."""
    with receiving() as server:
        yield server


@pytest.fixture
def forge() -> Iterator[Receiver]:
    """Whom commit statuses reach."""
    with receiving() as server:
        yield server


@pytest.fixture
def block(client: Any, people: Receiver) -> str:
    """The name of a block that posts to `people`."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    name = f"team-{uuid.uuid4().hex[:8]}"
    CustomWebhookNotificationBlock(
        name="team", url=people.url, json_data={"title": "{{subject}}", "text": "{{body}}"},
        allow_private_urls=True,
    ).save(name)  # fmt: skip
    return f"custom-webhook/{name}"


@dataclass(frozen=True)
class Releases:
    """Posts releases, as every trigger does, and ends their runs as a worker would."""

    client: Any
    repository: str

    def post(self, model: str = "", commit: str = "") -> PostedRun:
        model = model or f"toy-{uuid.uuid4().hex[:8]}"
        commit = commit or (uuid.uuid4().hex * 2)[:40]
        arrival = Arrival(f"/data/{model}", model, self.repository, commit, "ada@github")
        return Poster(self.client).post(arrival)

    def end(self, run: uuid.UUID, state: str, message: str = "") -> None:
        from prefect import states

        self.client.set_flow_run_state(run, getattr(states, state)(message=message), force=True)


@pytest.fixture
def releases(client: Any, forge: Receiver) -> Releases:
    """Releases of a repository on the forge."""
    return Releases(client, f"{forge.url}/team/toy")


RunNotifier = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(api: str, block: str, forge: Receiver, tmp_path: Path) -> dict[str, str]:
    """The settings of a stack that tells people."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return {
        **os.environ, "PREFECT_API_URL": api, "HANDOFF_HOME": str(tmp_path / "home"),
        "HANDOFF_NOTIFY": block, "HANDOFF_FORGE": "gitea", "HANDOFF_FORGE_URL": forge.url,
        "HANDOFF_FORGE_TOKEN_FILE": str(token),
    }  # fmt: skip


@pytest.fixture
def run_notifier(environment: dict[str, str]) -> RunNotifier:
    """The command line, as the stack runs it."""

    def run(*arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "handoff", "tell", *arguments],
            env={**environment, **changed}, capture_output=True, text=True, timeout=LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
