"""An archive behind https: the announced one, from a server that is vouched for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from handoff.artifacts.errors import DeliveryUnreachable
from handoff.tasks.fetch import step
from tests.tasks.fetch.samples import ARCHIVES, assert_fetched, assert_refused
from tests.tls_server import TlsServer, body, tls_server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsServer]:
    (tmp_path / "tls").mkdir()
    with tls_server(tmp_path / "tls") as serving:
        monkeypatch.setenv("SSL_CERT_FILE", str(serving.authority))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(step, "_FIRST_PAUSE_S", 0.01)
        yield serving


def archive_at(server: TlsServer, path: str = "/d.tar.gz", form: str = "tar.gz") -> str:
    data = ARCHIVES[form]
    server.answers.setdefault(path, body(data))
    return f"{server.address}{path}#sha256={hashlib.sha256(data).hexdigest()}"


def test_an_archive_behind_https_is_fetched(server: TlsServer, to: Path) -> None:
    assert_fetched(archive_at(server), to)


def test_another_archive_than_the_announced_one_is_refused(server: TlsServer, to: Path) -> None:
    server.answers["/d.tar.gz"] = body(ARCHIVES["tar"])
    assert_refused(archive_at(server), to, "is not what was announced")


def test_a_server_that_nobody_vouches_for_isnt_believed(
    server: TlsServer, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    assert_refused(archive_at(server), to, "certificate verify failed", DeliveryUnreachable)
    assert server.asked == []


def test_a_redirect_is_followed_to_https_alone(server: TlsServer, to: Path) -> None:
    server.answers["/moved"] = body(b"", 302, Location=f"{server.address}/d.tar.gz")
    archive_at(server)
    uri = archive_at(server, "/moved")
    server.answers["/away"] = body(b"", 302, Location="http://127.0.0.1:1/d.tar.gz")
    assert_refused(uri.replace("/moved", "/away"), to, "redirects away from https")
    server.answers["/file"] = body(b"", 302, Location="file:///etc/passwd")
    assert_refused(
        uri.replace("/moved", "/file"), to, "file:.* is not allowed", DeliveryUnreachable
    )
    assert_fetched(uri, to)


def test_a_login_comes_from_netrc_and_stays_with_its_host(
    server: TlsServer, tmp_path: Path, to: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / ".netrc").chmod(0o600)
    server.answers["/moved"] = body(b"", 302, Location=f"{server.address}/d.tar.gz")
    archive_at(server)
    assert_fetched(archive_at(server, "/moved"), to)
    (_, first), (_, second) = server.asked
    assert first["Authorization"] == "Basic bWU6aHVudGVyMg=="
    assert "Authorization" not in second


def test_a_busy_server_and_a_broken_line_are_tried_again(server: TlsServer, to: Path) -> None:
    tries: list[int] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        tries.append(1)
        data = ARCHIVES["tar.gz"]
        if len(tries) == 1:
            body(b"", 503)(request)
        elif len(tries) == 2:
            body(data[: len(data) // 2], Content_Length=str(len(data)))(request)
            request.close_connection = True
        else:
            body(data)(request)

    server.answers["/d.tar.gz"] = answer
    assert_fetched(archive_at(server), to)
    assert len(tries) == 3


def test_what_isnt_there_is_reported_at_once(server: TlsServer, to: Path) -> None:
    server.answers["/none"] = body(b"", 404)
    assert_refused(archive_at(server, "/none"), to, "HTTP status 404", DeliveryUnreachable)
    assert len(server.asked) == 1


def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(
    server: TlsServer, to: Path
) -> None:
    server.answers["/long"] = body(b"x", Content_Length=str(1 << 40))
    assert_refused(archive_at(server, "/long"), to, "too large")

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(64):
            request.wfile.write(b"\0" * (1 << 16))

    server.answers["/endless"] = endless
    assert_refused(archive_at(server, "/endless"), to, "too large")
