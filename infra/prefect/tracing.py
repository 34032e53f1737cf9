"""Traces of releases: a span for each flow run and each step, for a collector of OpenTelemetry's.

Prefect makes the spans (`prefect.telemetry.run_telemetry`) by OpenTelemetry's interface, and nobody
sends them without this. OpenTelemetry's own variables say where to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from handoff.infra.extras import naming_extras
from handoff.infra.settings import wants_traces


@contextmanager
def trace_runs() -> Iterator[None]:
    """Send the spans of what runs in the body, where `OTEL_EXPORTER_OTLP_ENDPOINT` names a place.

    All are sent when the body ends, however that ends; a collector that doesn't answer is logged,
    and changes no outcome. A provider that is there already (`opentelemetry-instrument`) stays.
    Raises `EnvironmentLacking` where the exporter isn't installed.
    """
    if not wants_traces():
        yield
        return
    with naming_extras():
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        yield
        return
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "handoff"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()
