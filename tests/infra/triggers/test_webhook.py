"""The webhook's answers: what passes is posted once, and nothing else is."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.triggers.hooks import Limits, SourceWithSecret
from handoff.infra.triggers.serving import require_safe
from handoff.infra.triggers.spool import DiskFull
from handoff.infra.triggers.webhook import Webhook
from tests.infra.triggers.webhooks import (
    COMMIT,
    HUB,
    OWN,
    SECRET,
    PostsKept,
    of_github,
    of_ours,
    push,
)


@pytest.fixture
def posts() -> PostsKept:
    return PostsKept()


@pytest.fixture
def served(posts: PostsKept) -> Iterator[TestClient]:
    sources = (SourceWithSecret(HUB, SECRET), SourceWithSecret(OWN, SECRET))
    limits = Limits(per_source_per_minute=20, per_address_per_minute=50, body_bytes=4096)
    # A slow machine gives no more requests than a quick one.
    webhook = Webhook(sources, limits, posts, clock=lambda: 0.0)
    with TestClient(webhook.application()) as client:
        yield client


def test_a_verified_push_is_posted_once_and_its_replay_answered_as_before(
    served: TestClient, posts: PostsKept
) -> None:
    first = served.post("/github", content=push(), headers=of_github(push()))
    assert first.status_code == 202
    assert first.json() == {
        "runs": [{"name": "quick-fox", "id": str(uuid.UUID(int=1)), "new": True}]
    }
    replay = {**of_github(push()), "x-github-delivery": "another"}
    second = served.post("/github", content=push(), headers=replay)
    assert (second.status_code, second.json()) == (200, first.json())
    assert [one.commit for one in posts.arrived] == [COMMIT]


def test_our_own_requests_have_five_minutes_and_one_life(
    served: TestClient, posts: PostsKept
) -> None:
    body = json.dumps({"delivery": "s3://models/in/toy", "model": "toy"}).encode()
    old = of_ours(body, now=time.time() - 400)
    assert served.post("/handoff", content=body, headers=old).status_code == 401
    headers = of_ours(body)
    assert served.post("/handoff", content=body, headers=headers).status_code == 202
    assert served.post("/handoff", content=body, headers=headers).status_code == 200
    assert len(posts.arrived) == 1


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
    served: TestClient, posts: PostsKept, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level("INFO", logger="handoff.webhook"):
        answer = served.request(
            method, path, content=body, headers={**of_github(body), **changed},
            follow_redirects=False,
        )  # fmt: skip
    assert answer.status_code == status
    assert posts.arrived == []
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
        (DiskFull("x", expected="a", got="b", remedy="c"), False, 507),
        (UsageProblem("x", expected="a", got="b", remedy="c"), False, 422),
    ],
)
def test_what_wasnt_posted_is_told_so_that_it_is_sent_again_and_then_counts(
    error: Exception | None, waits: bool, status: int, served: TestClient, posts: PostsKept
) -> None:
    posts.error, posts.waits = error, waits
    answer = served.post("/github", content=push(), headers=of_github(push()))
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status in (503, 507))
    posts.error, posts.waits = None, False
    assert served.post("/github", content=push(), headers=of_github(push())).status_code == 202


def test_what_is_kept_is_accepted_and_said_to_be_kept(served: TestClient, posts: PostsKept) -> None:
    posts.keeps = True
    answer = served.post("/github", content=push(), headers=of_github(push()))
    assert answer.status_code == 202
    assert answer.json() == {"runs": [], "kept": [f"toy {COMMIT[:12]}"]}


def test_githubs_redeliver_is_another_try_and_another_number_is_a_replay(
    served: TestClient, posts: PostsKept
) -> None:
    headers = {**of_github(push()), "x-github-delivery": "72d3162e-cc78-11e3"}
    assert served.post("/github", content=push(), headers=headers).status_code == 202
    assert served.post("/github", content=push(), headers=headers).status_code == 202
    other = {**headers, "x-github-delivery": "another"}
    assert served.post("/github", content=push(), headers=other).status_code == 200
    assert [one.commit for one in posts.arrived] == [COMMIT]
    assert [one.commit for one in posts.retried] == [COMMIT]
    forged = {**headers, "x-hub-signature-256": "sha256=0"}
    assert served.post("/github", content=push(), headers=forged).status_code == 401


def test_floods_are_held_back_by_address_and_by_source(
    served: TestClient, posts: PostsKept
) -> None:
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
