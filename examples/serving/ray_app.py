"""A followed model behind Ray Serve, in as many processes as are asked for.

    export HANDOFF_STORE=... FOLLOW=ranker@production REPLICAS=2
    serve run examples.serving.ray_app:app

`POST /predict` takes `{"inputs": {"ids": [[1, 2]], ...}}` and answers with the outputs by name and
the version that gave them; `GET /health` tells what the process that answers serves. Ray gathers
requests that come together, and gives what is counted to Prometheus with its own metrics. On a
cluster of several machines, the variables go to each by Ray's `runtime_env`.
"""

# Annotations are values here: Ray carries the functions to its processes by their code, and what an
# annotation names only as text isn't there.

import asyncio
import os
import time
from typing import Any

import torch
from fastapi import FastAPI, HTTPException
from ray import serve
from ray.serve.metrics import Counter, Gauge, Histogram

import handoff
from examples.serving.batching import Answer, answer
from examples.serving.exchange import Request, health_of, response_of, tensors_of

# Requests that wait for others at most, and how long, in seconds.
_TOGETHER, _WAIT_S = 256, 0.002
http = FastAPI()


@serve.deployment(
    num_replicas=int(os.environ.get("REPLICAS", "2")), max_ongoing_requests=4 * _TOGETHER
)
@serve.ingress(http)
class Model:
    """One process that follows the model: what it answers comes from one version each."""

    def __init__(self, name: str, every_s: float) -> None:
        tags = ("version", "outcome")
        self._requests = Counter("model_requests", "Requests, by outcome.", tag_keys=tags)
        self._seconds = Histogram(
            "model_request_seconds", "From the request to its answer, seconds.",
            boundaries=[0.001 * 2**n for n in range(14)],
        )  # fmt: skip
        self._rows = Histogram(
            "model_call_rows", "Rows in the call that answered a request.",
            boundaries=[2**n for n in range(12)],
        )  # fmt: skip
        self._version = Gauge("model_version", "What is served.")
        self._current = Gauge("model_is_current", "1 if that is what the alias points to.")
        self._followed = handoff.follow(name, every_s=every_s, on_change=self._show)
        self._show(self._followed.serves)

    def __del__(self) -> None:
        if hasattr(self, "_followed"):
            self._followed.close()

    def _show(self, serves: handoff.Serving) -> None:
        self._version.set(serves.version)
        self._current.set(serves.is_current)

    @http.post("/predict")
    async def predict(self, request: Request) -> dict[str, Any]:
        """Answer with the outputs and their version; 422 for inputs that the contract refuses."""
        began = time.perf_counter()
        outcome, version = "failed", ""
        try:
            found = await self._answer(request)
            outcome, version = "answered", str(found.version)
        except HTTPException:
            outcome = "refused"
            raise
        finally:
            self._requests.inc(tags={"version": version, "outcome": outcome})
        self._seconds.observe(time.perf_counter() - began)
        self._rows.observe(found.rows)
        return response_of(found, self._followed)

    @http.get("/health")
    def health(self) -> dict[str, Any]:
        """Return what this process serves."""
        return health_of(self._followed)

    async def _answer(self, request: Request) -> Answer:
        try:
            inputs = tensors_of(request, self._followed)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        found: Answer | Exception = await self._together(inputs)
        if isinstance(found, handoff.InputsRefused):
            raise HTTPException(422, str(found)) from found
        if isinstance(found, Exception):
            raise found
        return found

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=_TOGETHER, batch_wait_timeout_s=_WAIT_S
    )
    async def _together(self, requests: list[list[torch.Tensor]]) -> list[Answer | Exception]:
        """Answer requests that came together by as few calls as the contract's bounds allow."""
        # In a thread: what computes would keep this process from answering about its health.
        return await asyncio.to_thread(answer, self._followed.model, requests)


app = Model.bind(  # type: ignore[attr-defined]
    os.environ["FOLLOW"], float(os.environ.get("FOLLOW_EVERY_S", "30"))
)
