"""A followed model behind FastAPI, in as many processes as uvicorn starts.

    export HANDOFF_STORE=... FOLLOW=ranker@production
    export PROMETHEUS_MULTIPROC_DIR="$(mktemp -d)"     # empty, and the same for all processes
    uvicorn examples.serving.fastapi_app:app --workers 2

`POST /predict` takes `{"inputs": {"ids": [[1, 2]], ...}}` and answers with the outputs by name and
the version that gave them; `GET /health` tells what is served, `GET /metrics` what came of calls.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import prometheus_client as prometheus
from fastapi import FastAPI, HTTPException, Response
from prometheus_client import multiprocess

import handoff
from examples.serving.batching import Answer, Batcher
from examples.serving.exchange import Request, health_of, response_of, tensors_of

REQUESTS = prometheus.Counter("model_requests", "Requests, by outcome.", ["version", "outcome"])
SECONDS = prometheus.Histogram("model_request_seconds", "From the request to its answer, seconds.")
ROWS = prometheus.Histogram(
    "model_call_rows",
    "Rows in the call that answered a request.",
    buckets=[2**n for n in range(12)],
)
SERVED = prometheus.Gauge("model_version", "What is served.", multiprocess_mode="liveall")
CURRENT = prometheus.Gauge(
    "model_is_current", "1 if that is what the alias points to.", multiprocess_mode="liveall"
)


def show(serves: handoff.Serving) -> None:
    """Let the gauges say what is served."""
    SERVED.set(serves.version)
    CURRENT.set(serves.is_current)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the model before the first request, and give it up behind the last."""
    every_s = float(os.environ.get("FOLLOW_EVERY_S", "30"))
    with handoff.follow(os.environ["FOLLOW"], every_s=every_s, on_change=show) as followed:
        show(followed.serves)
        app.state.followed, app.state.batcher = followed, Batcher(lambda: followed.model)
        yield
        app.state.batcher.close()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        multiprocess.mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Request) -> dict[str, Any]:
    """Answer with the outputs and their version; 422 for inputs that the contract refuses."""
    began = time.perf_counter()
    outcome, version = "failed", ""
    try:
        answer = await _answer(request)
        outcome, version = "answered", str(answer.version)
    except HTTPException:
        outcome = "refused"
        raise
    finally:
        REQUESTS.labels(version, outcome).inc()
    SECONDS.observe(time.perf_counter() - began)
    ROWS.observe(answer.rows)
    return response_of(answer, app.state.followed)


async def _answer(request: Request) -> Answer:
    try:
        inputs = tensors_of(request, app.state.followed)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    try:
        answer: Answer = await asyncio.wrap_future(app.state.batcher.ask(inputs))
    except handoff.InputsRefused as error:
        raise HTTPException(422, str(error)) from error
    return answer


@app.get("/health")
def health() -> dict[str, Any]:
    """Return what this process serves."""
    return health_of(app.state.followed)


@app.get("/metrics")
def metrics() -> Response:
    """Give the metrics of all processes in Prometheus' form."""
    registry = prometheus.REGISTRY
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = prometheus.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return Response(prometheus.generate_latest(registry), media_type=prometheus.CONTENT_TYPE_LATEST)
