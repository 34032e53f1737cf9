"""Requests that came at the same time, answered by one call, within the contract's bounds.

For models whose rows don't depend on each other, which a delivery declares and a release checks
(`batch_invariant`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from handoff import InputsRefused, LoadedModel

Tensors = Sequence[torch.Tensor]
# A batch has the contract's rows at most; this bounds those that can't be joined.
_MOST_REQUESTS = 256


@dataclass(frozen=True)
class Answer:
    """A request's outputs, the version that gave them, and how many rows its call had."""

    outputs: Tensors
    version: int
    rows: int


def answer(model: LoadedModel, requests: Sequence[Tensors]) -> list[Answer | Exception]:
    """Answer the requests by as few calls of `model` as its contract allows.

    Where a call of several is refused, each of them is called alone: one that is wrong costs the
    others time, and no answer.
    """
    answers: dict[int, Answer | Exception] = {}
    for places in _groups(model, requests):
        results: Sequence[Answer | Exception] | Exception
        results = _call(model, [requests[place] for place in places])
        if isinstance(results, Exception):
            alone = [_call(model, [requests[place]]) for place in places]
            results = [one if isinstance(one, Exception) else one[0] for one in alone]
        answers.update(zip(places, results, strict=True))
    return [answers[place] for place in range(len(requests))]


def batch_axis(model: LoadedModel) -> str | None:
    """Return the dynamic dimension that is the first axis of each input and output; None for none.

    One that is another axis, too, can't be joined along.
    """
    specs = (*model.signature.inputs, *model.signature.outputs)
    first = {spec.shape[0] if spec.shape else None for spec in specs}
    name = first.pop() if len(first) == 1 else None
    others = {axis for spec in specs for axis in spec.shape[1:]}
    return name if isinstance(name, str) and name not in others else None


def _groups(model: LoadedModel, requests: Sequence[Tensors]) -> Iterator[list[int]]:
    """Yield the places of those that are called together: alike but for the rows, which fit."""
    axis = batch_axis(model)
    open_groups: dict[object, tuple[list[int], int]] = {}
    for place, request in enumerate(requests):
        rows = {tensor.shape[0] if tensor.dim() else -1 for tensor in request}
        count = rows.pop() if len(rows) == 1 else -1
        if axis is None or count not in model.signature.dimensions[axis]:
            yield [place]  # it goes alone, and is refused where that is wrong
            continue
        like = tuple((tensor.dtype, tensor.shape[1:]) for tensor in request)
        group, rows_so_far = open_groups.get(like, ([], 0))
        if rows_so_far + count > model.signature.dimensions[axis].max:
            yield group
            group, rows_so_far = [], 0
        open_groups[like] = ([*group, place], rows_so_far + count)
    yield from (group for group, _ in open_groups.values())


def _call(model: LoadedModel, requests: Sequence[Tensors]) -> list[Answer] | Exception:
    try:
        if len(requests) == 1:
            (request,) = requests
            rows = request[0].shape[0] if request and request[0].dim() else 1
            return [Answer(model.tensors(*request), model.version, rows)]
        outputs = model.tensors(*map(torch.cat, zip(*requests, strict=True)))
    except (InputsRefused, RuntimeError) as error:
        return error
    counts = [request[0].shape[0] for request in requests]
    split = zip(*(output.split(counts) for output in outputs), strict=True)
    return [Answer(parts, model.version, sum(counts)) for parts in split]


class Batcher:
    """A thread that answers what is asked: what came while it was busy goes together.

    `model` gives the model for each batch, so that a batch is answered by one version. A request
    waits at most `wait_s` for others.
    """

    def __init__(self, model: Callable[[], LoadedModel], wait_s: float = 0.002) -> None:
        self._model = model
        self._wait_s = wait_s
        self._queue: queue.SimpleQueue[tuple[Tensors, Future[Answer]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def ask(self, inputs: Tensors) -> Future[Answer]:
        """Return the answer to come; asked of it, it raises what the model refused."""
        future: Future[Answer] = Future()
        self._queue.put((inputs, future))
        return future

    def close(self) -> None:
        """Answer what was asked so far, and end."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            until = time.monotonic() + self._wait_s
            while not last and len(batch) < _MOST_REQUESTS:
                try:
                    request = self._queue.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                last = request is None
                if request is not None:
                    batch.append(request)
            self._answer(batch)
            if last:
                return

    def _answer(self, batch: list[tuple[Tensors, Future[Answer]]]) -> None:
        try:
            results = answer(self._model(), [inputs for inputs, _ in batch])
        except Exception as error:  # noqa: BLE001 - each who asked gets it
            results = [error] * len(batch)
        for (_, future), one in zip(batch, results, strict=True):
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(one, Exception):
                future.set_exception(one)
            else:
                future.set_result(one)
