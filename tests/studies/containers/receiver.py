"""A stand-in for whoever takes notifications: it remembers what is posted to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Receiver:
    """What was taken so far, and where the containers reach it."""

    address: str
    taken: list[str] = field(default_factory=list)


@contextmanager
def receiving(host: str) -> Iterator[Receiver]:
    """Listen on that address of this machine as long as this lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.taken.append(body.decode("utf-8", "replace"))
            self.send_response(204)
            self.end_headers()

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
