"""Prefect's embedded server: it answers, knows no secret, ends, and tells why it can't start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.infra.prefect.flow_calls import EmbeddedServer
from handoff.infra.prefect.orphans import find_marked
from tests.limits import LIMIT_S
from tests.prefect_server import copy_prefect_database

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedServer]:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for a server")
    monkeypatch.setenv("HANDOFF_STARTED_BY", "this test")
    # The run's first start of one made the tables.
    copy_prefect_database(tmp_path)
    server = EmbeddedServer(tmp_path)
    yield server
    server.end()


def test_it_answers_with_its_database_in_the_home_and_without_the_stores_secrets(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    server.wait()
    with urllib.request.urlopen(f"{server.api}/admin/version") as answer:
        assert json.load(answer).startswith("3.")
    assert (tmp_path / "prefect.db").exists()
    ((process, environment),) = find_marked("HANDOFF_STARTED_BY", "this test").items()
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    server.end()
    assert not Path("/proc", str(process)).exists()


def test_one_that_cannot_start_is_reported_with_its_own_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file where a folder should be")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    server = EmbeddedServer(tmp_path)
    try:
        with pytest.raises(EnvironmentLacking, match="embedded server did not start") as caught:
            server.wait()
    finally:
        server.end()
    assert "it ended with " in caught.value.got
    assert "Error: " in caught.value.got


def test_a_process_that_has_imported_prefect_leaves_it_to_prefect() -> None:
    program = (
        "import pathlib, prefect\nfrom handoff.infra.prefect.flow_calls import begin_server\n"
        "assert begin_server(pathlib.Path()) is None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))", "the flow found no room on a disk"),
        ("RuntimeError('no such deployment')", "Prefect could not run the flow"),
    ],
)
def test_a_flow_that_finds_a_full_disk_says_so_and_blames_no_server(
    error: str, message: str, tmp_path: Path
) -> None:
    program = (
        "import errno, os\n"
        "from handoff.artifacts.errors import EnvironmentLacking\n"
        "from handoff.infra.prefect.flow_calls import call_flow\n"
        "from handoff.infra.settings import read_settings\n"
        f"def load(): raise {error}\n"
        "try: call_flow(read_settings(), None, load)\n"
        "except EnvironmentLacking as error: print(error.what)\n"
    )
    environment = {
        **os.environ, "HANDOFF_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api"
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        check=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert ended.stdout.strip() == message
