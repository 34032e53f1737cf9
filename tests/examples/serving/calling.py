"""Clients that call an example's server over HTTP without a pause, and count the answers."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from prometheus_client.parser import text_string_to_metric_families

from tests.limits import LIMIT_S
from tests.tasks.follow.versions import Shelf
from tests.tasks.registry.registering import SomeRegistry

ROOT = Path(__file__).parents[3]


def follow_environment(registry: SomeRegistry, folder: Path) -> dict[str, str]:
    """Return the variables of a server that follows production of the registry's model."""
    return os.environ | {
        "HANDOFF_HOME": str(folder / "home"),
        "HANDOFF_STORE": registry.stores.objects,
        "HANDOFF_TRUSTED_KEYS": registry.stores.trusted[0],
        "FOLLOW": "toy@production",
        "FOLLOW_EVERY_S": "0.5",
    }


def read_counter(metrics: str, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """Return the values of a metric in Prometheus' form, by its labels."""
    counts: Counter[tuple[str, ...]] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == name:
                counts[tuple(sample.labels[label] for label in labels)] += int(sample.value)
    return counts


@contextmanager
def running_commands(
    folder: Path, environment: Mapping[str, str], *commands: Sequence[str | Path]
) -> Iterator[None]:
    """Let the commands run in the checkout for the body; then end them, and print their log."""
    processes = []
    with (folder / "log").open("wb") as log:
        for command in commands:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            )
    try:
        yield
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
        print((folder / "log").read_text()[-4000:])


@dataclass(frozen=True)
class Server:
    """An example's server at `address`, which serves what `shelf` releases."""

    address: str
    shelf: Shelf

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.address}/{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get("health"))
        return answer

    def predict(self, **inputs: Any) -> tuple[int, Any]:
        """Return the status and the answer's content."""
        request = urllib.request.Request(
            f"{self.address}/predict", json.dumps({"inputs": inputs}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def rows(self, first: int, last: int) -> tuple[int, float]:
        """Ask for these rows; return the version, and the factor that all scores came with."""
        inputs = {name: tensor[first:last].tolist() for name, tensor in self.shelf.inputs.items()}
        status, answer = self.predict(**inputs)
        assert status == 200, answer
        (scores,) = (torch.tensor(values) for values in answer["outputs"].values())
        factors = (scores / self.shelf.plain[first:last]).flatten()
        torch.testing.assert_close(factors, torch.full_like(factors, float(factors[0])),
                                   rtol=1e-3, atol=1e-3)  # fmt: skip
        return answer["version"], round(float(factors[0]), 2)

    def wait(self, healthy: Callable[[dict[str, Any]], bool], processes: int = 1) -> None:
        """Return when so many of the server's processes have answered that they are `healthy`."""
        until = time.monotonic() + LIMIT_S
        answers: dict[int, dict[str, Any]] = {}
        while sum(map(healthy, answers.values())) < processes:
            assert time.monotonic() < until, answers
            try:
                one = self.health()
                answers[one["process"]] = one
            except OSError:
                pass
            time.sleep(0.1)


@dataclass
class Calls:
    """How many calls were answered, by version and factor; what failed."""

    answered: Counter[tuple[int, float]] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


@contextmanager
def calling(server: Server, threads: int = 4) -> Iterator[Calls]:
    """Call from so many threads for the body, each for other rows; at its end all have ended."""
    calls, lock, over = Calls(), threading.Lock(), threading.Event()

    def work(number: int) -> None:
        while not over.is_set():
            try:
                answer = server.rows(number % 5, 6)
                with lock:
                    calls.answered[answer] += 1
            except Exception as error:  # noqa: BLE001 - each is counted, whatever it is
                calls.failed.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield calls
    finally:
        over.set()
        for worker in workers:
            worker.join()
