"""A real HTTP server in front of another one, which does to the traffic what a plan says.

    with FaultyServer("http://127.0.0.1:9000") as server:
        server.plan("unavailable", times=2, method="PUT")
        ...  # a client of server.url

It knows nothing of S3 or MLflow: requests go upstream as they came, Host header and all.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

Fault = Literal[
    "unavailable",  # 503, nothing goes upstream
    "broken",  # 500, nothing goes upstream
    "reset",  # the connection is reset, nothing goes upstream
    "hang",  # no answer until the client goes away, nothing goes upstream
    "lost_answer",  # done upstream, then the connection is reset
    "truncate",  # half of the answer's body, then the connection ends
    "flip_answer",  # one bit of the answer's body
    "flip_request",  # one bit of the request's body
    "strip_if_none_match",  # a server that doesn't know conditional writes
    "delay",  # half a second, then as always
]
FAULTS: tuple[Fault, ...] = Fault.__args__  # type: ignore[attr-defined]
FOREVER = 1 << 30
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade"}


@dataclass
class PlannedFault:
    """A fault that is still to be done `times` times to requests that match."""

    fault: Fault
    times: int
    method: str
    path: re.Pattern[str]


@dataclass(frozen=True)
class Request:
    """A request that came, and what was done to it; the status is 0 where none was answered."""

    method: str
    path: str
    status: int
    fault: Fault | None


class FaultyServer:
    """Passes HTTP on to `upstream`; `log` holds every request in the order of their answers."""

    def __init__(self, upstream: str) -> None:
        """Listen on a free port of the loopback interface."""
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self.upstream = (parts.hostname, parts.port or 80)
        self.log: list[Request] = []
        self.closing = threading.Event()
        self._planned: list[PlannedFault] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def plan(self, fault: Fault, *, times: int = 1, method: str = ".*", path: str = "") -> None:
        """Do `fault` to the next `times` requests whose method and path match the expressions."""
        with self._lock:
            self._planned.append(PlannedFault(fault, times, method, re.compile(path)))

    def clear(self) -> None:
        """Forget what is planned."""
        with self._lock:
            self._planned.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """Return the first planned fault for a request, and count it as done."""
        with self._lock:
            for planned in self._planned:
                if re.fullmatch(planned.method, method) and planned.path.search(path):
                    planned.times -= 1
                    if not planned.times:
                        self._planned.remove(planned)
                    return planned.fault
        return None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], faulty: FaultyServer) -> None:
        self.faulty = faulty
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def serve(self) -> None:
        """Pass one request on, or don't, as planned."""
        body = self._body()
        fault = self.server.faulty.take(self.command, self.path)
        if fault == "hang":
            self._log(0, fault)
            self._wait_for_client()
        elif fault == "reset":
            self._log(0, fault)
            self._reset()
        elif fault in ("unavailable", "broken"):
            status = 503 if fault == "unavailable" else 500
            self._log(status, fault)
            self._answer(status, [("Retry-After", "0")], b"")
        else:
            self._pass_on(body, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = serve  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Keep quiet: `log` holds what came."""

    def _pass_on(self, body: bytes, fault: Fault | None) -> None:
        if fault == "delay":
            self.server.faulty.closing.wait(0.5)
        dropped = _HOP_BY_HOP | ({"if-none-match"} if fault == "strip_if_none_match" else set())
        headers = {name: text for name, text in self.headers.items() if name.lower() not in dropped}
        if "content-length" in {name.lower() for name in headers} or body:
            headers = {n: text for n, text in headers.items() if n.lower() != "content-length"}
            headers["Content-Length"] = str(len(body))
        upstream = HTTPConnection(*self.server.faulty.upstream, timeout=60)
        try:
            sent = _flip_bit(body) if fault == "flip_request" else body
            upstream.request(self.command, self.path, body=sent or None, headers=headers)
            answer = upstream.getresponse()
            data = answer.read()
        except (HTTPException, OSError):
            self._log(502, fault)
            self._answer(502, [], b"")
            return
        finally:
            upstream.close()
        self._log(answer.status, fault)
        if fault == "lost_answer":
            self._reset()
            return
        self._answer(answer.status, answer.getheaders(), data, fault)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, fault: Fault | None = None
    ) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, text in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = text
            elif name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                self.send_header(name, text)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if fault == "flip_answer":
            data = _flip_bit(data)
        if fault == "truncate":
            data = data[: len(data) // 2]
            self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(pieces)

    def _wait_for_client(self) -> None:
        self.connection.settimeout(0.1)
        while not self.server.faulty.closing.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.close_connection = True

    def _reset(self) -> None:
        # Closing a socket that lingers for no time sends a reset rather than an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _log(self, status: int, fault: Fault | None) -> None:
        self.server.faulty.log.append(Request(self.command, self.path, status, fault))


def _flip_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data
