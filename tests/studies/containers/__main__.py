"""python -m tests.studies.containers: the served stack as containers, up, used, and down.

`--folder` is where engine, images and log are (they stay for the next run, what ran does not),
`--anew` removes it first, `--write FILE` puts what was seen between its marks in a Markdown file.
Ends with 1 where anything failed, with 69 where this machine lacks something, with 130 when it was
asked to end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.infra.stack.stack_files import TOOLS
from tests.studies.containers import machine
from tests.studies.containers.composed import ComposedStack
from tests.studies.containers.engine import find_engine
from tests.studies.containers.receiver import receiving
from tests.studies.containers.running import (
    BESIDE,
    Run,
    listen_for_containers,
    log_of,
    make_images,
    result_log_of,
)
from tests.studies.containers.stack import BLOCK
from tests.studies.containers.trial import try_all


def _missing_requirements(folder: Path) -> list[str]:
    return machine.missing(
        folder, TOOLS / "docker-compose", user=os.geteuid(), release=machine.os_release(),
        path=f"{os.environ['PATH']}:/usr/sbin:/sbin",
    )  # fmt: skip


def _make_images(folder: Path) -> None:
    log, seen = log_of(folder), result_log_of(folder)
    engine = find_engine(folder, log)
    with seen.trying("compose") as row:
        row.note(log.run([str(TOOLS / "docker-compose"), "version", "--short"]).strip())
    with engine.running(with_networks=False):
        make_images(engine, seen)


def _try_stack(folder: Path) -> None:
    listen_for_containers()
    engine = find_engine(folder, log_of(folder))
    with engine.running(with_networks=True), receiving(BESIDE) as receiver:
        stack = ComposedStack(engine, folder / "containers")
        stack.make_files({"NOTIFY": BLOCK})
        try_all(stack, result_log_of(folder), receiver)


RUN = Run(
    "stack-run", "tests.studies.containers", {"images": _make_images, "trial": _try_stack},
    frozenset({"trial"}), _missing_requirements,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(RUN.main())
