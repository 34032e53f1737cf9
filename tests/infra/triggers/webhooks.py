"""What the webhook's tests share: signed requests, a posts that remembers, a served process."""

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
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.events import sign
from handoff.infra.triggers.hooks import Source
from handoff.infra.triggers.poster import PostedRun
from handoff.infra.triggers.spool import SpooledArrival
from tests.limits import LIMIT_S
from tests.prefect_server import free_port

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
class PostsKept:
    """Posts nowhere: it remembers what came, and does what a test wants of it."""

    arrived: list[Arrival] = field(default_factory=list)
    error: Exception | None = None
    waits: bool = False
    keeps: bool = False
    retried: list[Arrival] = field(default_factory=list)

    async def post(
        self, arrival: Arrival, policy: Policy, *, limit_s: float
    ) -> PostedRun | SpooledArrival:
        self.arrived.append(arrival)
        if self.keeps:
            return SpooledArrival("1.json", arrival, policy, "2026-11-27T01:00:00+00:00")
        return await self._answer()

    async def retry(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> PostedRun:
        self.retried.append(arrival)
        return await self._answer()

    async def _answer(self) -> PostedRun:
        if self.waits:
            await asyncio.wait_for(asyncio.sleep(99), 0.05)
        if self.error:
            raise self.error
        return PostedRun("quick-fox", uuid.UUID(int=1), "Scheduled", True, 1, "http://x")

    def close(self) -> None:
        pass


OWN = Source("handoff", secret_env="S", deliveries=("s3://models/in/",))
HUB = Source(
    "github", secret_env="S", repository="team/toy", model="toy",
    delivery="git+https://host/team/toy.git@{commit}",
)  # fmt: skip


def push(commit: str = COMMIT, repository: str = "team/toy") -> bytes:
    return json.dumps({
        "ref": "refs/heads/main", "after": commit, "pusher": {"name": "ada"},
        "repository": {"full_name": repository, "html_url": f"https://github.com/{repository}"},
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


@dataclass(frozen=True)
class Served:
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        return posted(self.port, path, body, headers)


def posted(
    port: int, path: str, body: bytes, headers: dict[str, str], *, method: str = "POST"
) -> tuple[int, Any]:
    """Return the webhook's answer to a request: its status, and its JSON."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@contextmanager
def webhook(
    folder: Path, api: str, *arguments: str, model: str = "", log: Path | None = None
) -> Iterator[Served]:
    """Serve the webhook for a model of its own, or for `model`; it has to end well on SIGTERM."""
    config, port, log = folder / "hooks.toml", free_port(), log or folder / "webhook.log"
    config.write_text(CONFIG.format(model=model or f"toy-{uuid.uuid4().hex[:8]}"))
    environment = {
        **os.environ, "PREFECT_API_URL": api, "HANDOFF_HOME": str(folder), "HOOK_SECRET": SECRET,
    }  # fmt: skip
    command = [sys.executable, "-m", "handoff", "webhook", "--config", str(config)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), *arguments], env=environment,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
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
        process.wait(timeout=LIMIT_S)


def runs_of(client: Any, model: str) -> list[Any]:
    """Return the runs that were posted for a model, oldest first."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    tags = FlowRunFilterTags(all_=[f"model:{model}"])
    found: list[Any] = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags))
    return sorted(found, key=lambda run: run.created)


def _require_up(port: int) -> None:
    """Raise `OSError` unless something listens that has dealt with what came before."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(1)
