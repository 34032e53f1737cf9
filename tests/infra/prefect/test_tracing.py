"""Traces of releases, as a collector of OpenTelemetry's receives them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status
from torch import nn

from handoff.infra.settings import wants_traces
from tests.infra.commands.test_cli import handoff
from tests.prefect_server import common_server
from tests.tasks.deliveries import write_delivery


class Collector:
    """What was sent to it, and with which login."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[ResourceSpans] = []
        self.logins: set[str | None] = set()

    @property
    def spans(self) -> list[Span]:
        return [span for sent in self.sent for scope in sent.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback, which takes OTLP over HTTP."""

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


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(nn.functional.dropout(x, 0.5, True))
        return found


def refused(folder: Path, **environment: str) -> None:
    """Release a delivery that is refused when it is inspected."""
    delivery = write_delivery(folder / "delivery", Noise().eval(), {"x": torch.randn(3, 4)})
    settings = {"PREFECT_API_URL": common_server(), **environment}
    result = handoff("release", str(delivery), home=folder / "home", settings=settings)
    assert result.returncode == 2, result.stderr
    assert "random numbers" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_release_sends_a_span_for_the_run_and_for_each_step(
    tmp_path: Path, collector: Collector
) -> None:
    refused(
        tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=collector.address,
        OTEL_EXPORTER_OTLP_HEADERS="x-login=of-the-team",
    )  # fmt: skip
    (run,) = [span for span in collector.spans if not span.parent_span_id]
    steps = {span.name: span for span in collector.spans if span.parent_span_id == run.span_id}
    assert {"take in", "inspect"} <= {name.partition("-")[0] for name in steps}
    assert {span.trace_id for span in collector.spans} == {run.trace_id}
    assert run.status.code == Status.STATUS_CODE_ERROR
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in collector.spans)
    named = {a.key: a.value.string_value for a in collector.sent[0].resource.attributes}
    assert named["service.name"] == "handoff"
    assert collector.logins == {"of-the-team"}


@pytest.mark.long
def test_a_collector_that_is_not_there_changes_no_outcome(tmp_path: Path) -> None:
    refused(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_sent_where_opentelemetrys_variables_say_so(
    given: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                 "OTEL_SDK_DISABLED"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert wants_traces() == wanted
