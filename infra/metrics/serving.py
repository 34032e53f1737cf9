"""`handoff metrics`: serve the figures to Prometheus, or print them once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from handoff.artifacts.digest import Digest
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.stores.store import open_store
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.metrics.collector import LOGGER, MetricsCollector, Source
from handoff.infra.metrics.sources import home_samples, prefect_samples, store_samples
from handoff.infra.metrics.store_usage import StoreUse
from handoff.infra.servers import require_free_port
from handoff.infra.settings import Settings, read_settings
from handoff.infra.terminal.output import echo, log_lines

_TIMEOUT_S = 5.0


@contextmanager
def figures_of(settings: Settings) -> Iterator[MetricsCollector]:
    """Give the figures of this home, its store and its Prefect server, where there is one."""
    manifests: dict[Digest, Manifest] = {}
    use = StoreUse(partial(open_store, settings.stores.objects))
    sources: dict[str, Source] = {
        "home": lambda: home_samples(settings), "store": lambda: store_samples(settings, manifests),
        "store_use": use.samples,
    }  # fmt: skip
    if settings.is_embedded:
        yield MetricsCollector(sources)
        return
    prepare_prefect(settings, retries=1)
    from prefect.client.orchestration import get_client

    with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
        yield MetricsCollector({**sources, "prefect": lambda: prefect_samples(client)})


def print_metrics() -> None:
    """Print the figures once, in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    with figures_of(read_settings()) as figures:
        registry.register(figures)
        echo(generate_latest(registry).decode(), nl=False)


def serve_metrics(host: str, port: int) -> None:
    """Answer `GET /metrics` until Ctrl-C or SIGTERM.

    There is no login: whoever reaches the address reads the models' names and figures. Raises
    `UsageProblem` for a port that is taken.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    log_lines(LOGGER)
    require_free_port(host, port, "the metrics", "--port")
    registry = CollectorRegistry()
    with figures_of(read_settings()) as figures:
        registry.register(figures)
        server, thread = start_http_server(port, addr=host, registry=registry)
        LOGGER.info("metrics at http://%s:%d/metrics", host, port)
        try:
            ended.wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
