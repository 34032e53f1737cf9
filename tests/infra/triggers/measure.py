"""What the webhook and notify cost: requests a second, seconds until a run is posted.

    python -m tests.infra.triggers.measure [SECONDS]

One Prefect server on SQLite and one webhook, on loopback, with limits that don't bind.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.infra.triggers.conftest import DEPLOY
from tests.infra.triggers.webhooks import Served, of_github, push, webhook
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server

_SENDERS = 8


def main(seconds: float) -> None:
    """Measure and print a table."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with prefect_server(folder / "prefect") as address:
            environment = {**os.environ, "PREFECT_API_URL": address, "HANDOFF_HOME": home}
            subprocess.run(
                [sys.executable, "-c", DEPLOY], env=environment, check=True, timeout=LIMIT_S
            )
            with webhook(folder, address) as served:
                forged = of_github(b"{}", "x" * 32)
                same = push(uuid.uuid4().hex + "a" * 8)
                _flood("forged signature", seconds, lambda: served.post("/github", b"{}", forged))
                _flood("replayed", seconds, lambda: served.post("/github", same, of_github(same)))
                _flood("new commit", seconds, lambda: _push_new(served))
            _notify(environment)


def _push_new(served: Served) -> tuple[int, object]:
    body = push(uuid.uuid4().hex + "a" * 8)
    return served.post("/github", body, of_github(body))


def _flood(name: str, seconds: float, send: Callable[[], tuple[int, object]]) -> None:
    """Send as fast as a few senders can, and print what came back."""
    send()
    before = _processor_s()
    end = time.monotonic() + seconds
    statuses: Counter[int] = Counter()
    took: list[float] = []

    def sender(_: int) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            status, _answer = send()
            took.append(time.monotonic() - began)
            statuses[status] += 1

    with ThreadPoolExecutor(_SENDERS) as pool:
        list(pool.map(sender, range(_SENDERS)))
    took.sort()
    spent = {
        process: (after - before[process]) / len(took) * 1e3
        for process, after in _processor_s().items()
    }
    print(
        f"{name:18} {len(took) / seconds:7.1f}/s  median {statistics.median(took) * 1e3:6.1f} ms  "
        f"p99 {took[int(len(took) * 0.99)] * 1e3:6.1f} ms  {dict(statuses)}"
        f"  processor ms a request: {', '.join(f'{n} {ms:.1f}' for n, ms in spent.items())}"
    )


def _processor_s() -> dict[str, float]:
    """Return the processor seconds of the webhook and of Prefect's server."""
    spent = dict.fromkeys(("webhook", "Prefect"), 0.0)
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        name = "webhook" if "webhook" in process.cmdline() else "Prefect"
        spent[name] += times.user + times.system
    return spent


def _notify(environment: dict[str, str]) -> None:
    took = []
    for _ in range(5):
        command = [
            sys.executable,
            "-m",
            "handoff",
            "notify",
            "--delivery",
            "/data/toy",
        ]
        began = time.monotonic()
        result = subprocess.run(
            [*command, "--commit", uuid.uuid4().hex, "--model", "toy", "--json"],
            env=environment, check=True, capture_output=True,
        )  # fmt: skip
        took.append(time.monotonic() - began)
        assert json.loads(result.stdout)["new"]
    print(f"{'notify':18} median {statistics.median(took):.2f} s of {sorted(took)}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
