"""Real receivers on loopback: HTTP servers that remember, and answer what a test wants."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "t0ken-that-nobody-may-read"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Received:
    """A request: its path, its headers by lower-case name, and its JSON."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Receiver:
    """An HTTP server: its address, what came, and the answers that come next (then 201)."""

    url: str = ""
    came: list[Received] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], str]] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Give a server that takes whatever is posted to it."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.came.append(Received(self.path, headers, json.loads(text)))
            status, more, answer = receiver.answers.pop(0) if receiver.answers else (201, {}, "{}")
            self.send_response(status)
            for name, value in {**more, "Content-Length": str(len(answer.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def receiving_mail() -> Iterator[tuple[int, list[str]]]:
    """Give the port of an SMTP server (RFC 5321, what a client needs of it), and the mails."""
    mails: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline():
                verb = line[:4].upper()
                if verb == b"DATA":
                    self.say("354 go on")
                    lines = []
                    while (part := self.rfile.readline()) not in (b".\r\n", b""):
                        lines.append(part)
                    mails.append(b"".join(lines).decode())
                self.say("221 bye" if verb == b"QUIT" else "250 fine")
                if verb == b"QUIT":
                    return

        def say(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], mails
        finally:
            server.shutdown()
