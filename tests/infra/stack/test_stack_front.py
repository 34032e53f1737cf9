"""The front with TLS: Caddy with the stack's own file, before a real MLflow as compose names it."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.infra.stack.stack_files import STACK, filled_in, services
from tests.infra.stack.stack_processes import running
from tests.limits import LIMIT_S
from tests.prefect_server import free_port

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        shutil.which("caddy") is None, reason="no Caddy. As root: apt-get install caddy"
    ),
]
NAMES = {"PREFECT_NAME": "prefect.localhost", "MLFLOW_NAME": "mlflow.localhost"}


class HeaderEcho(BaseHTTPRequestHandler):
    """Stands where Prefect does: says what reaches it."""

    def do_GET(self) -> None:
        text = f"{self.headers['Host']} {self.headers['X-Forwarded-Proto']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_request(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Front:
    """A front that listens on this host's loopback, and whose authority is trusted."""

    port: int
    authority: Path

    def ask(self, name: str, path: str, origin: str = "") -> tuple[int, str]:
        """Return the status and text of a page by this name; from another's page, post to it."""
        trusting = ssl.create_default_context(cafile=str(self.authority))
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain:
            connection = http.client.HTTPSConnection(name, context=trusting)
            connection.sock = trusting.wrap_socket(plain, server_hostname=name)
            if origin:
                sent = {"Origin": origin, "Content-Type": "application/json"}
                connection.request("POST", path, "{}", headers=sent)
            else:
                connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")


@contextmanager
def caddy(folder: Path, prefect: int, mlflow: int) -> Iterator[Front]:
    """Run Caddy with the stack's file, on other ports and with servers of this host."""
    front = Front(free_port(), folder / "data" / "caddy" / "pki" / "authorities/local/root.crt")
    ports = f"http_port {free_port()}\nhttps_port {front.port}"
    own = f"{{\nadmin off\nskip_install_trust\n{ports}\n}}\n"
    text = (STACK / "Caddyfile").read_text("utf-8")
    for there, here in (("prefect:4200", prefect), ("mlflow:5000", mlflow)):
        assert there in text
        text = text.replace(there, f"127.0.0.1:{here}")
    (folder / "Caddyfile").write_text(own + text)
    places = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config")}
    command = ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **NAMES, **places}, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not front.authority.exists() or not _answers(front):
            assert process.poll() is None, (folder / "caddy.log").read_text()
            assert time.monotonic() < deadline, (folder / "caddy.log").read_text()
            time.sleep(0.1)
        yield front
    finally:
        process.terminate()
        process.wait(30)


def _answers(front: Front) -> bool:
    try:
        return front.ask(NAMES["PREFECT_NAME"], "/")[0] == 200
    except OSError:
        return False


@pytest.mark.long
def test_both_servers_are_reached_by_their_names_with_tls_and_mlflow_by_no_other(
    tmp_path: Path,
) -> None:
    environment = services()["mlflow"]["environment"]
    named = {
        name: filled_in(environment[name], NAMES)
        for name in ("MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS")
    }
    port = free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={port}",
        "--workers=1", f"--backend-store-uri=sqlite:///{tmp_path / 'mlflow.db'}",
    ]  # fmt: skip
    # How the test itself asks whether it is up.
    named["MLFLOW_SERVER_ALLOWED_HOSTS"] += f",127.0.0.1:{port}"
    prefect = ThreadingHTTPServer(("127.0.0.1", 0), HeaderEcho)
    threading.Thread(target=prefect.serve_forever, daemon=True).start()
    health = f"http://127.0.0.1:{port}/health"
    try:
        with (
            running(command, {**os.environ, **named}, health, tmp_path / "log"),
            caddy(tmp_path, prefect.server_port, port) as front,
        ):
            assert front.ask(NAMES["PREFECT_NAME"], "/") == (200, "prefect.localhost https")
            assert front.ask(NAMES["MLFLOW_NAME"], "/")[0] == 200
            make = "/api/2.0/mlflow/registered-models/create"
            # What it lacks is a name for the model, of which it complains.
            own = f"https://{NAMES['MLFLOW_NAME']}"
            assert front.ask(NAMES["MLFLOW_NAME"], make, own)[0] == 400
            assert front.ask(NAMES["MLFLOW_NAME"], make, "https://attacker.example")[0] == 403
            # Whoever lets a name of his lead there, as pages in a victim's browser do.
            direct = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            direct.request("GET", "/", headers={"Host": "attacker.example"})
            assert direct.getresponse().status == 403
    finally:
        prefect.shutdown()
        prefect.server_close()


@pytest.mark.skipif(shutil.which("wget") is None, reason="no wget, which the image has")
def test_the_probe_of_compose_is_content_with_a_front_that_runs_and_with_no_other(
    tmp_path: Path,
) -> None:
    port = free_port()
    probe = services()["tls"]["healthcheck"]["test"][1:]
    assert ":2019/" in probe[-1]  # where Caddy's own interface is
    probe[-1] = probe[-1].replace(":2019/", f":{port}/")
    assert subprocess.run(probe, check=False).returncode != 0
    (tmp_path / "Caddyfile").write_text(f"{{\nadmin 127.0.0.1:{port}\n}}\n")
    command = ["caddy", "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    places = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    ready = f"http://127.0.0.1:{port}/config/"
    with running(command, {**os.environ, **places}, ready, tmp_path / "caddy.log"):
        assert subprocess.run(probe, check=False).returncode == 0
