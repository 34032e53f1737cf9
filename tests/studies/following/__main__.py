"""Calls a followed model from eight threads while 20 versions take over and 20 can't.

    python -m tests.studies.following [--swaps 20] [--threads 8]

Prints a row for each: what is served, calls so far, what failed, and the memory. Rows called held
tell the memory without what the heap keeps for later, after two swaps, after half and after all of
them: that is flat where nothing leaks. The package is compiled once; each version has other
weights, patched into it and signed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import time
from pathlib import Path

import handoff
from handoff.tasks.follow.following import FollowedModel
from tests.tasks.built_release import build_release
from tests.tasks.follow.load import Load, loaded, memory_mb, spoilers
from tests.tasks.follow.versions import Shelf, crashing_library, shelf_of
from tests.tasks.registry.registering import some_registry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="handoff-following-") as place:
        folder = Path(place)
        (folder / "built").mkdir()
        built = build_release(folder / "built")
        registry = some_registry(folder)
        os.environ |= {
            "HANDOFF_HOME": str(folder / "home"),
            "HANDOFF_STORE": registry.stores.objects,
            "HANDOFF_TRUSTED_KEYS": registry.stores.trusted[0],
        }
        shelf = shelf_of(registry, built)
        shelf.release(1.0)
        crashing = crashing_library(folder)
        with handoff.follow("toy@production", every_s=9999.0, runners=2) as followed:
            began = time.monotonic()
            with loaded(followed, shelf, args.threads) as load:
                go_through(followed, shelf, crashing, args.swaps)
            report(load, time.monotonic() - began)
            row("held", 0.0, followed, trims=True)


def go_through(followed: FollowedModel, shelf: Shelf, crashing: bytes, swaps: int) -> None:
    spoil = spoilers(shelf, crashing)
    row("before", 0.0, followed)
    for number in range(swaps):
        if number in (2, swaps // 2):
            row("held", 0.0, followed, trims=True)
        good = shelf.release(number + 2.0)
        began = time.monotonic()
        assert followed.look().version == good, followed.serves.error
        row("took over", time.monotonic() - began, followed)
        spoil[number % len(spoil)](500.0 + number)
        began = time.monotonic()
        assert followed.look().version == good
        assert followed.serves.error
        row("served on", time.monotonic() - began, followed)


def row(what: str, took_s: float, followed: FollowedModel, *, trims: bool = False) -> None:
    """Print a row; `trims` gives back first what the heap keeps free (`malloc_trim`)."""
    if trims:
        ctypes.CDLL(None).malloc_trim(0)
    memory = " ".join(f"{name} {value:.1f}" for name, value in memory_mb().items())
    serves = followed.serves
    print(f"{what:10} v{serves.version:<3} {took_s:6.2f} s  {memory} MB  {serves.error[:90]}")


def report(load: Load, took_s: float) -> None:
    print(
        f"{load.calls} calls in {took_s:.0f} s, {len(load.failed)} failed or mixed, "
        f"{len(load.answered)} versions answered; the slowest call took "
        f"{load.slowest_s * 1e3:.1f} ms"
    )
    for text in load.failed[:5]:
        print("failed:", text)


if __name__ == "__main__":
    main()
