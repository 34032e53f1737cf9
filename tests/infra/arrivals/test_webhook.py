"""The webhook as it is served: what passes becomes one run, and nothing else does."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from artifacts.errors import EnvironmentLacking, UsageProblem
from infra.arrivals.arrival import Arrival, Policy
from infra.arrivals.hooks import Guarded, Limits, Source
from infra.arrivals.posting import Posted
from infra.arrivals.serving import BoundedConnection, require_safe
from infra.arrivals.signatures import sign
from infra.arrivals.webhook import Webhook
from tests.prefect_server import free_port
from tests.tls_server import write_certificates

SECRET = "0123456789abcdef" * 2
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """
[[source]]
kind = "github"
secret_env = "HOOK_SECRET"
repository = "team/toy"
model = "{model}"
delivery = "git+https://host/team/toy.git@{{commit}}#subdirectory=delivery"

[[source]]
kind = "s3"
secret_env = "HOOK_SECRET"
bucket = "models"
prefix = "in"

[[source]]
kind = "handoff"
secret_env = "HOOK_SECRET"
deliveries = ["s3://models/in/"]

[limits]
per_address_per_minute = 1000000
per_source_per_minute = 1000000
overall_per_minute = 1000000
"""


@dataclass
class Desk:
    """Posts nowhere: it remembers what came, and does what a test wants of it."""

    arrived: list[Arrival] = field(default_factory=list)
    error: Exception | None = None
    waits: bool = False

    async def post(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> Posted:
        self.arrived.append(arrival)
        if self.waits:
            await asyncio.wait_for(asyncio.sleep(99), 0.05)
        if self.error:
            raise self.error
        return Posted("quick-fox", uuid.UUID(int=1), "Scheduled", True, 1, "http://x")

    def close(self) -> None:
        pass


OWN = Source("handoff", secret_env="S", deliveries=("s3://models/in/",))
HUB = Source(
    "github", secret_env="S", repository="team/toy", model="toy",
    delivery="git+https://host/team/toy.git@{commit}",
)  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def served(desk: Desk) -> Iterator[TestClient]:
    sources = (Guarded(HUB, SECRET), Guarded(OWN, SECRET))
    limits = Limits(per_source_per_minute=20, per_address_per_minute=50, body_bytes=4096)
    with TestClient(Webhook(sources, limits, desk).application()) as client:
        yield client


def push(commit: str = COMMIT) -> bytes:
    return json.dumps({
        "ref": "refs/heads/main", "after": commit, "pusher": {"name": "ada"},
        "repository": {"full_name": "team/toy", "html_url": "https://github.com/team/toy"},
    }).encode()  # fmt: skip


def of_github(body: bytes, secret: str = SECRET) -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "content-type": "application/json", "x-github-event": "push",
        "x-hub-signature-256": f"sha256={signature}",
    }  # fmt: skip


def of_ours(body: bytes, secret: str = SECRET, now: float | None = None) -> dict[str, str]:
    then, identifier = int(time.time() if now is None else now), uuid.uuid4().hex
    return {
        "content-type": "application/json", "webhook-id": identifier,
        "webhook-timestamp": str(then), "webhook-signature": sign(secret, identifier, then, body),
    }  # fmt: skip


def test_a_verified_push_is_posted_once_and_its_replay_answered_as_before(
    served: TestClient, desk: Desk
) -> None:
    first = served.post("/github", content=push(), headers=of_github(push()))
    assert first.status_code == 202
    assert first.json() == {
        "runs": [{"name": "quick-fox", "id": str(uuid.UUID(int=1)), "new": True}]
    }
    replay = {**of_github(push()), "x-github-delivery": "another"}
    second = served.post("/github", content=push(), headers=replay)
    assert (second.status_code, second.json()) == (200, first.json())
    assert [one.commit for one in desk.arrived] == [COMMIT]


def test_our_own_requests_have_five_minutes_and_one_life(served: TestClient, desk: Desk) -> None:
    body = json.dumps({"delivery": "s3://models/in/toy", "model": "toy"}).encode()
    old = of_ours(body, now=time.time() - 400)
    assert served.post("/handoff", content=body, headers=old).status_code == 401
    headers = of_ours(body)
    assert served.post("/handoff", content=body, headers=headers).status_code == 202
    assert served.post("/handoff", content=body, headers=headers).status_code == 200
    assert len(desk.arrived) == 1


@pytest.mark.parametrize(
    ("method", "path", "changed", "body", "status"),
    [
        ("GET", "/", {}, b"", 404),
        ("POST", "/", {}, b"{}", 404),
        ("POST", "/github/", {}, b"{}", 404),
        ("GET", "/github", {}, b"", 405),
        ("PUT", "/github", {}, b"{}", 405),
        ("HEAD", "/s3", {}, b"", 405),
        ("POST", "/github", {"content-type": "application/x-www-form-urlencoded"}, push(), 415),
        ("POST", "/github", {"content-encoding": "gzip"}, push(), 415),
        ("POST", "/github", {"x-hub-signature-256": "sha256=0"}, push(), 401),
        ("POST", "/gitlab", {}, push(), 401),
        ("POST", "/handoff", {}, push(), 401),
        ("POST", "/github", {}, b"x" * 5000, 413),
        ("POST", "/github", {}, b"{", 400),
        ("POST", "/github", {}, b"[]", 400),
        ("POST", "/github", {}, b"[" * 4000, 400),
        ("POST", "/github", {}, b'{"repository": 1}', 400),
        ("POST", "/github", {"x-github-event": "ping"}, b'{"zen": "x"}', 200),
    ],
)  # fmt: skip
def test_everything_else_is_refused_in_a_line_without_a_hint(  # noqa: PLR0917
    method: str, path: str, changed: dict[str, str], body: bytes, status: int,
    served: TestClient, desk: Desk, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level("INFO", logger="handoff.webhook"):
        answer = served.request(
            method, path, content=body, headers={**of_github(body), **changed},
            follow_redirects=False,
        )  # fmt: skip
    assert answer.status_code == status
    assert desk.arrived == []
    assert answer.headers["connection"] == "close"
    if method != "HEAD" and status != 200:
        assert set(answer.json()) == {"error"}
        assert len(answer.text) < 60
    (line,) = caplog.messages
    assert f" {status} " in line
    assert SECRET not in line


def test_a_body_without_a_length_is_limited_too(served: TestClient) -> None:
    body = (b"x" * 1000 for _ in range(10))
    headers = {"content-type": "application/json"}
    assert served.post("/github", content=body, headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("error", "waits", "status"),
    [
        (EnvironmentLacking("x", expected="a", got="b", remedy="c"), False, 503),
        (None, True, 503),
        (UsageProblem("x", expected="a", got="b", remedy="c"), False, 422),
    ],
)
def test_what_wasnt_posted_is_told_so_that_it_is_sent_again_and_then_counts(
    error: Exception | None, waits: bool, status: int, served: TestClient, desk: Desk
) -> None:
    desk.error, desk.waits = error, waits
    answer = served.post("/github", content=push(), headers=of_github(push()))
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status == 503)
    desk.error, desk.waits = None, False
    assert served.post("/github", content=push(), headers=of_github(push())).status_code == 202


def test_floods_are_held_back_by_address_and_by_source(served: TestClient, desk: Desk) -> None:
    statuses = []
    for number in range(30):
        body = push(f"{number:040x}".replace("0", "a", 1))
        statuses.append(served.post("/github", content=body, headers=of_github(body)).status_code)
    assert statuses == [202] * 20 + [429] * 10
    forged = [
        served.post("/github", content=b"{}", headers=of_github(b"{}", "x" * 32)).status_code
        for _ in range(30)
    ]
    assert forged == [401] * 20 + [429] * 10


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_beyond_loopback_tls_is_a_must(host: str, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="without TLS"):
        require_safe(host, None, "")
    require_safe(host, tmp_path / "certificate", "")
    require_safe(host, None, "10.0.0.1")
    for near in ("127.0.0.1", "::1", "localhost"):
        require_safe(near, None, "")


# As a process, with a real Prefect server.


@dataclass(frozen=True)
class Served:
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        return answer.status, told


@contextmanager
def webhook(folder: Path, api: str, *arguments: str) -> Iterator[Served]:
    """Serve the webhook for a model of its own; it has to end well on SIGTERM."""
    config, port, log = folder / "hooks.toml", free_port(), folder / "webhook.log"
    config.write_text(CONFIG.format(model=f"toy-{uuid.uuid4().hex[:8]}"))
    environment = {
        **os.environ, "PREFECT_API_URL": api, "HANDOFF_HOME": str(folder), "HOOK_SECRET": SECRET,
    }  # fmt: skip
    command = [sys.executable, "-m", "infra.cli", "webhook", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), *arguments], env=environment,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                _require_up(port)
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield Served(port, log, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _require_up(port: int) -> None:
    """Raise `OSError` unless something listens that has dealt with what came before."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(1)


@pytest.mark.server
def test_a_push_becomes_a_run_on_the_server_and_the_log_keeps_the_secret(
    prefect_api: str, client: Any, tmp_path: Path
) -> None:
    commit = uuid.uuid4().hex + "a" * 8
    with webhook(tmp_path, prefect_api) as served:
        status, told = served.post("/github", push(commit), of_github(push(commit)))
        assert status == 202
        (run,) = told["runs"]
        assert served.post("/github", push(commit), of_github(push(commit)))[0] == 200
        assert served.post("/github", push(commit), of_github(push(commit), "x" * 32))[0] == 401
        body = json.dumps({
            "Records": [{
                "eventName": "s3:ObjectCreated:Put",
                "s3": {"bucket": {"name": "models"}, "object": {
                    "key": "in%2Ftoy%2Fdelivery.toml", "eTag": commit, "sequencer": "1"}},
            }]
        }).encode()  # fmt: skip
        bearer = {"content-type": "application/json", "authorization": f"Bearer {SECRET}"}
        assert served.post("/s3", body, bearer)[0] == 202
    created = client.read_flow_run(uuid.UUID(run["id"]))
    assert created.parameters["parameters"]["commit"] == commit
    assert created.parameters["parameters"]["by"] == "ada@github"
    lines = served.log.read_text()
    assert served.process.returncode == -signal.SIGTERM, lines
    assert SECRET not in lines
    assert "sha256=" not in lines
    assert lines.count(" /github 202 ") == lines.count(" /github 401 ") == 1


@pytest.mark.server
def test_without_prefect_the_sender_is_told_to_come_again(tmp_path: Path) -> None:
    with webhook(tmp_path, "http://127.0.0.1:9/api") as served:
        began = time.monotonic()
        assert served.post("/github", push(), of_github(push())) == (503, {"error": "not now"})
        assert time.monotonic() - began < 10, "GitHub waits for 10 s"


@pytest.mark.server
def test_one_address_cant_hold_all_connections(tmp_path: Path) -> None:
    with webhook(tmp_path, "http://127.0.0.1:9/api") as served:
        held = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
        time.sleep(0.5)
        for one in held:
            one.setblocking(False)
        ended = [_has_ended(one) for one in held]
        assert ended.count(True) == 40 - 16
        for one in held:
            one.close()
        time.sleep(0.2)
        assert served.post("/github", b"{}", of_github(b"{}", "x" * 32))[0] == 401


def test_a_head_that_never_ends_is_waited_for_only_so_long(desk: Desk) -> None:
    connection = type("Impatient", (BoundedConnection,), {"limit_s": 0.5})
    port = free_port()
    application = Webhook((Guarded(OWN, SECRET),), Limits(), desk).application()
    server = uvicorn.Server(
        uvicorn.Config(application, port=port, http=connection, log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
            slow.sendall(b"POST /handoff HTTP/1.1\r\nHost: x\r\n")
            began = time.monotonic()
            with suppress(ConnectionResetError):
                assert slow.recv(1) == b""
            assert 0.3 < time.monotonic() - began < 5
    finally:
        server.should_exit = True
        thread.join(timeout=20)


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.server
def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    import ssl

    certificate, authority = write_certificates(tmp_path)
    with webhook(tmp_path, "http://127.0.0.1:9/api", "--certificate", str(certificate)) as served:
        context = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=context)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read()) == {"status": "up"}
        connection.close()
