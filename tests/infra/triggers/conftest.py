"""A Prefect server that knows the release deployment, for all tests of arrivals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from handoff.infra.triggers.poster import Poster
from tests.limits import LIMIT_S
from tests.prefect_server import database_of, prefect_server, put_database
from tests.shared_tools import made_once

Handoff = Callable[..., "subprocess.CompletedProcess[str]"]

# Apply the deployments that arrivals need, in a process of its own: Prefect reads its settings at
# its import.
DEPLOY = """
import sys
from handoff.infra.commands.deploy import apply
from handoff.infra.prefect.deployments import Schedule, deployments
wanted = [one for one in deployments(Schedule("0 2 * * *", "UTC"))
          if one.flow.rpartition(".")[2] in {"release", "resume", *sys.argv[1:]}]
apply(tuple(wanted))
"""


@pytest.fixture(scope="package")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API address of a server with the deployment `release/handoff`, and no worker."""
    with deployed_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@contextmanager
def deployed_server(home: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Give the API address of a server, with Prefect's `settings`, that `deploy` was applied to.

    It has the deployments of three flows: release, resume and recompile.
    """
    put_database(made_once("prefect-deployed", _deploy_once), home)
    with prefect_server(home, settings=settings) as address:
        yield address


def _deploy_once(folder: Path) -> list[Path]:
    with prefect_server(folder) as address:
        deploy(address, "recompile")
    return database_of(folder)


def deploy(api: str, *more: str) -> None:
    """Apply the deployments that arrivals need to a server, and those of `more` flows."""
    environment = {**os.environ, "PREFECT_API_URL": api}
    command = [sys.executable, "-c", DEPLOY, *more]
    subprocess.run(command, env=environment, check=True, timeout=LIMIT_S)


@pytest.fixture
def client(prefect_api: str) -> Iterator[Any]:
    """Prefect's own client."""
    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(prefect_api) as opened:
        yield opened


@pytest.fixture
def poster(client: Any) -> Poster:
    """What posts arrivals."""
    return Poster(client)


@pytest.fixture
def handoff(prefect_api: str, tmp_path: Path) -> Handoff:
    """The command line, as a person runs it, with the server's address."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "handoff", *arguments],
            env={
                **os.environ, "PREFECT_API_URL": prefect_api,
                "HANDOFF_HOME": str(tmp_path / "home"), **environment,
            },
            capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
