"""What a worker proves before its first job, and what it says where it can't."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, PackageRefused
from handoff.flows.names import BUILD_POOL, CONTROL_POOL
from handoff.infra.settings import read_settings
from handoff.infra.stack import preflight
from handoff.infra.stack.preflight import run_checks
from tests.limits import LIMIT_S
from tests.tasks.registry.registering import SomeRegistry, some_registry


@contextmanager
def server(ahead_s: float) -> Iterator[str]:
    """Give the address of a server whose clock is that much ahead of ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate((timestamp or time.time()) + ahead_s, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    answering = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=answering.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{answering.server_port}/api"
    finally:
        answering.shutdown()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SomeRegistry]:
    """A registry with a version, as the environment of a worker names it."""
    found = some_registry(tmp_path)
    found.release()
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", found.stores.objects)
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", found.stores.trusted[0])
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", found.key.uri)
    monkeypatch.setenv("HANDOFF_SIGNING_PUBLIC_KEY", str(found.key.public))
    with server(0) as address:
        monkeypatch.setenv("PREFECT_API_URL", address)
        yield found


def test_a_machine_that_has_all_of_it_says_so_and_leaves_nothing_behind(
    registry: SomeRegistry,
) -> None:
    before = {one.key for one in registry.releases.store.keys("")}
    results = run_checks(read_settings(), BUILD_POOL)
    names = [line.partition(":")[0] for line in results]
    assert names == [
        "settings", "store", "clock", "room", "trust", "key", "torch", "compiler",
    ]  # fmt: skip
    assert "which is trusted" in results[5]
    assert {one.key for one in registry.releases.store.keys("")} == before


def test_a_store_that_is_not_mounted_is_told_until_it_is(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    store = Path(registry.stores.objects)
    run_checks(read_settings(), CONTROL_POOL)
    store.rename(tmp_path / "unmounted")
    store.mkdir()
    with pytest.raises(EnvironmentLacking, match="no ledger at all") as lacking:
        run_checks(read_settings(), CONTROL_POOL, briefly=True)
    assert "that of toy" in lacking.value.expected
    assert "whether it is mounted" in lacking.value.remedy
    assert not any(store.iterdir())
    store.rmdir()
    (tmp_path / "unmounted").rename(store)
    run_checks(read_settings(), CONTROL_POOL, briefly=True)


def test_a_pool_is_asked_for_what_its_jobs_need(
    registry: SomeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert registry
    # Another test imports it, which takes seconds.
    monkeypatch.setattr(preflight, "_torch", lambda _: "imported")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert len(run_checks(read_settings(), CONTROL_POOL)) == 5
    # Who has a target's hardware signs nothing: no key, and nobody to trust.
    (tmp_path / "nobody").mkdir()
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", str(tmp_path / "nobody"))
    monkeypatch.delenv("HANDOFF_SIGNING_KEY")
    monkeypatch.setenv("CXX", "g++")
    names = [line.partition(":")[0] for line in run_checks(read_settings(), "handoff-cuda-sm90")]
    assert names == ["settings", "store", "clock", "room", "torch", "compiler"]


def test_what_is_told_while_a_machine_works_leaves_out_what_takes_seconds(
    registry: SomeRegistry,
) -> None:
    assert registry
    results = run_checks(read_settings(), BUILD_POOL, briefly=True)
    names = [line.partition(":")[0] for line in results]
    assert names == ["settings", "store", "clock", "room", "compiler"]


def test_a_second_machine_is_asked_for_the_stores_of_its_stack_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example.org:4200/api")
    monkeypatch.delenv("HANDOFF_STORE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(EnvironmentLacking, match="Set HANDOFF_STORE and MLFLOW_TRACKING_URI as"):
        preflight._require_named_stores(BUILD_POOL, read_settings())
    with pytest.raises(EnvironmentLacking, match="Set HANDOFF_STORE as"):
        preflight._require_named_stores("handoff-cuda-sm90", read_settings())
    monkeypatch.setenv("HANDOFF_STORE", "s3://models/releases")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example.org:5000")
    assert preflight._require_named_stores(BUILD_POOL, read_settings()) == "the stack's"
    # On the stack's own machine the home's own stores are the stack's.
    monkeypatch.delenv("HANDOFF_STORE")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert (
        preflight._require_named_stores(BUILD_POOL, read_settings()) == "of a stack on this machine"
    )


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    assert preflight._room(read_settings()).endswith("GB free")
    monkeypatch.setattr(preflight, "_ROOM_BYTES", 1 << 60)
    with pytest.raises(EnvironmentLacking, match="Make room there"):
        preflight._room(read_settings())


def test_all_that_lacks_is_one_sentence(
    registry: SomeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert registry
    monkeypatch.setattr(preflight, "_torch", lambda _: "imported")
    (tmp_path / "file").touch()
    monkeypatch.setenv("HANDOFF_STORE", str(tmp_path / "file" / "store"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with server(3600) as address:
        monkeypatch.setenv("PREFECT_API_URL", address)
        with pytest.raises(EnvironmentLacking) as caught:
            run_checks(read_settings(), BUILD_POOL)
    message = str(caught.value)
    assert message.startswith(
        "this machine can't work for handoff-build, and takes no job: expected "
    )
    for part in ("store: ", "NTP", "compiler: there is no C++ compiler", "Install g++"):
        assert part in message
    # A server tells whole seconds, and a busy machine takes some.
    assert re.search(r"got .*: -3(59|60)\d s", message)


def test_a_key_that_nobody_trusts_and_a_ledger_of_anothers_are_refused(
    registry: SomeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert registry
    (tmp_path / "another").mkdir()
    other = some_registry(tmp_path / "another")
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", other.stores.trusted[0])
    with pytest.raises(HandoffError, match="trust"):
        preflight._key(read_settings())
    with pytest.raises(PackageRefused):
        preflight._trust(read_settings())
    # One that would be made here isn't among those that are trusted either.
    monkeypatch.delenv("HANDOFF_SIGNING_KEY")
    monkeypatch.delenv("HANDOFF_SIGNING_PUBLIC_KEY")
    with pytest.raises(EnvironmentLacking, match="no key signs here"):
        preflight._key(read_settings())
    # In a home of its own, where nobody else is asked, it is.
    monkeypatch.delenv("HANDOFF_TRUSTED_KEYS")
    assert preflight._key(read_settings()) == "made by the first release"


@pytest.mark.parametrize("compiler", ["/bin/false", "/bin/true --nothing"])
def test_a_compiler_that_compiles_nothing_is_reported(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(EnvironmentLacking, match=r"compiles nothing|no C\+\+ compiler"):
        preflight._compiler(read_settings())


@pytest.mark.server
def test_a_worker_that_lacks_something_ends_before_it_is_in_the_pool(
    registry: SomeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry
    monkeypatch.setenv("CXX", "no-such-compiler")
    answer = subprocess.run(
        [sys.executable, "-m", "handoff", "worker"], capture_output=True, text=True, check=False,
        timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert answer.returncode == 1
    assert "can't work for handoff-build, and takes no job" in answer.stderr
    assert "Traceback" not in answer.stderr
