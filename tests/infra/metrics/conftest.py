"""A Prefect server with Handoff's deployments, and no worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.infra.triggers.conftest import deployed_server
from tests.prefect_server import client_of


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's API address."""
    with deployed_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    """Prefect's own client."""
    with client_of(api) as opened:
        yield opened
