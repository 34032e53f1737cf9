"""A stand-in for a forge's API: it takes commit statuses, and remembers them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Taken:
    """A request: its path, the token that it came with, what it said."""

    path: str
    token: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Receiver:
    """What was taken so far, and where the containers reach it."""

    address: str
    taken: list[Taken] = field(default_factory=list)


@contextmanager
def receiving(host: str) -> Iterator[Receiver]:
    """Listen on that address of this machine as long as this lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            token = self.headers.get("Authorization", "")
            receiver.taken.append(Taken(self.path, token, json.loads(body)))
            self.send_response(201)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Say nothing of a request."""

    server = ThreadingHTTPServer((host, 0), Handler)
    receiver = Receiver(f"http://{host}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
