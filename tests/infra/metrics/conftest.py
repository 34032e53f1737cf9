"""A Prefect server with Handoff's deployments, and no worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.infra.triggers.conftest import deploy
from tests.prefect_server import prefect_server


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's API address."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        deploy(address, "recompile")
        yield address


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    """Prefect's own client."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as opened:
        yield opened
