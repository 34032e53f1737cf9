"""A flow that takes long, for tests of what ends one."""

from __future__ import annotations

import time

from prefect import flow


@flow(name="sleeping")
def sleep_long() -> None:
    """Sleep for longer than a test lasts."""
    for _ in range(600):
        time.sleep(0.5)
