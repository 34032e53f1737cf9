"""The webhook as a process: with a real Prefect server, without one, and with slow clients."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.hooks import Limits, SourceWithSecret
from handoff.infra.triggers.serving import BoundedConnection
from handoff.infra.triggers.spool import Spool
from handoff.infra.triggers.webhook import Webhook
from tests.infra.triggers.webhooks import (
    OWN,
    SECRET,
    PostsKept,
    of_github,
    push,
    runs_of,
    webhook,
)
from tests.prefect_server import free_port
from tests.served_stack import wait_until
from tests.studies.outages.full_disks import small_disk
from tests.tls_server import write_certificates


@pytest.mark.server
def test_a_push_becomes_a_run_on_the_server_and_the_log_keeps_the_secret(
    prefect_api: str, client: Any, tmp_path: Path
) -> None:
    commit = uuid.uuid4().hex + "a" * 8
    with webhook(tmp_path, prefect_api) as served:
        status, answer = served.post("/github", push(commit), of_github(push(commit)))
        assert status == 202
        (run,) = answer["runs"]
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
def test_what_was_accepted_without_prefect_is_posted_once_after_a_kill(
    prefect_api: str, client: Any, tmp_path: Path
) -> None:
    commits = [uuid.uuid4().hex + "a" * 8 for _ in range(3)]
    with webhook(tmp_path, "http://127.0.0.1:9/api") as served:
        began = time.monotonic()
        for commit in commits:
            status, answer = served.post("/github", push(commit), of_github(push(commit)))
            assert (status, answer["runs"]) == (202, [])
            assert answer["kept"][0].endswith(commit[:12])
        assert time.monotonic() - began < 30, "GitHub waits for 10 s"
        served.process.kill()
        served.process.wait()
    spool = Spool(tmp_path)
    assert [one.arrival.commit for one in spool.list_waiting()] == commits
    model = spool.list_waiting()[0].arrival.model
    with webhook(tmp_path, prefect_api, model=model) as served:
        wait_until("all are posted", lambda: not spool.list_waiting(), 60)
        # What was sent before the kill is sent again: there is its run already.
        status, answer = served.post("/github", push(commits[0]), of_github(push(commits[0])))
        assert (status, answer["runs"][0]["new"]) == (202, False)
    runs = runs_of(client, model)
    assert [run.parameters["parameters"]["commit"] for run in runs] == commits


@pytest.mark.server
def test_a_sender_is_told_to_come_again_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("not a folder")
    with webhook(tmp_path, "http://127.0.0.1:9/api") as served:
        assert served.post("/github", push(), of_github(push())) == (503, {"error": "not now"})
        assert "can't be kept" in served.log.read_text()


@pytest.mark.server
def test_a_full_disk_is_said_in_a_sentence_and_with_room_it_is_accepted(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk") as home:
            # Such as a log that grew: the home has been used before.
            Spool(home).keep(Arrival("/data/toy", commit="a" * 40), "queue")
            ballast = home / "ballast"
            with webhook(home, "http://127.0.0.1:9/api", log=tmp_path / "log") as served:
                with ballast.open("wb") as stream, suppress(OSError):
                    while True:
                        stream.write(bytes(1 << 16))
                status, answer = served.post("/github", push(), of_github(push()))
                assert (status, set(answer)) == (507, {"error"})
                assert answer["error"].startswith("Nothing was accepted: the disk on which")
                assert str(home) not in answer["error"]
                assert "No space left on device" in served.log.read_text()
                ballast.unlink()
                status, answer = served.post("/github", push(), of_github(push()))
                assert (status, len(answer["kept"])) == (202, 1)
            assert len(Spool(home).list_waiting()) == 2
    except PermissionError as error:
        pytest.skip(f"nothing may be mounted here: {error}")


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


def test_a_head_that_never_ends_is_waited_for_only_so_long() -> None:
    connection = type("Impatient", (BoundedConnection,), {"limit_s": 0.5})
    port = free_port()
    application = Webhook((SourceWithSecret(OWN, SECRET),), Limits(), PostsKept()).application()
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
