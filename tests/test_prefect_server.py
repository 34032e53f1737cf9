"""The servers of the tests: forked from one process, alike, and gone with who asked for them."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.limits import LIMIT_S
from tests.prefect_server import client_of, prefect_server
from tests.served_stack import wait_until

_ROOT = Path(__file__).parents[1]
# One that has nothing to import, for what it does when a run ends.
_BARE = """
import pathlib, sys
from tests import prefect_forks
prefect_forks._IMPORTED = ()
prefect_forks.main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""
_ASKER = """
import pathlib, sys, time
from tests.prefect_server import prefect_server
with prefect_server(pathlib.Path(sys.argv[1])) as address:
    print(address, flush=True)
    time.sleep(600)
"""
_COMMON = """
from tests.prefect_server import common_server
assert common_server() == common_server()
print(common_server())
"""


@pytest.mark.server
def test_two_servers_at_once_have_settings_a_database_and_a_log_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_CSRF_PROTECTION_ENABLED", "true")
    with ExitStack() as opened:
        for name in ("one", "other"):
            address = opened.enter_context(prefect_server(tmp_path / name))
            with urllib.request.urlopen(f"{address}/admin/settings") as answer:
                settings = json.load(answer)
            # They are read again, from an environment without what this process has of Prefect's.
            assert settings["home"] == str(tmp_path / name)
            assert not settings["server"]["analytics_enabled"]
            assert not settings["server"]["api"]["csrf_protection_enabled"]
            with client_of(address) as client:
                client.create_flow_from_name(name)
                assert [flow.name for flow in client.read_flows()] == [name]
            assert (tmp_path / name / "prefect.db").exists()
            assert address.removesuffix("/api") in (tmp_path / name / "server.log").read_text()


@pytest.mark.server
def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(RuntimeError, match="already in use"),
        prefect_server(tmp_path, taken.getsockname()[1]),
    ):
        pass


@pytest.mark.server
def test_a_server_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ASKER, str(tmp_path)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        port = int(asker.stdout.readline().removesuffix("/api\n").rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
        asker.kill()

    wait_until("the end of what it started", lambda: _refuses(port))


@pytest.mark.server
def test_one_for_all_tests_of_a_process_ends_with_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _COMMON], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    assert _refuses(int(ended.stdout.removesuffix("/api\n").rpartition(":")[2]))


def _refuses(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def first() -> Iterator[subprocess.Popen[bytes]]:
    """What stands for a run's first process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("how", ["its first process is killed", "its folder is gone"])
def test_nothing_is_left_of_a_run_that_ended(
    how: str, first: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    command = [sys.executable, "-c", _BARE, str(folder / "socket"), str(first.pid)]
    with subprocess.Popen(command, cwd=_ROOT) as forks:
        wait_until("the forks' socket", (folder / "socket").exists)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(str(folder / "socket"))
            # A server without a log ends at once, and says so. The next is asked for all the same.
            connection.send(b"{}")
            assert connection.recv(64) == b"1"
        assert forks.poll() is None
        if "killed" in how:
            first.send_signal(signal.SIGKILL)
        else:
            shutil.rmtree(folder)
        assert forks.wait(timeout=LIMIT_S) == 0
