"""A collector of OpenTelemetry's, which keeps what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """What was sent to it, and with which login."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[ResourceSpans] = []
        self.logins: set[str | None] = set()

    @property
    def runs(self) -> list[Span]:
        """The spans that no other holds, in the order in which they came."""
        return [span for span in self.spans if not span.parent_span_id]

    @property
    def spans(self) -> list[Span]:
        return [span for sent in self.sent for scope in sent.scope_spans for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Give a collector on loopback, which takes OTLP over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            found.sent += ExportTraceServiceRequest.FromString(data).resource_spans
            found.logins.add(self.headers.get("x-login"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()
