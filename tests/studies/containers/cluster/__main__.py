"""python -m tests.studies.containers.cluster: the manifests on a cluster of one node, used.

Its options, its exit codes and what it leaves are those of `tests.studies.containers`, and so are
the images, in the same folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.infra.stack.stack_files import TOOLS
from tests.studies.containers import machine
from tests.studies.containers.cluster.node import Node, write_runtime
from tests.studies.containers.cluster.programs import PACKAGES, prepare_programs, programs_of
from tests.studies.containers.cluster.trial import PORTS, Cluster, try_all
from tests.studies.containers.engine import find_engine
from tests.studies.containers.running import (
    Run,
    listen_for_containers,
    log_of,
    make_images,
    result_log_of,
)
from tests.studies.containers.stack import Stack


def _missing_requirements(folder: Path) -> list[str]:
    return machine.missing(
        folder, TOOLS / "kubectl", user=os.geteuid(), release=machine.os_release(),
        path=f"{os.environ['PATH']}:/usr/sbin:/sbin", command="cluster-run", also=PACKAGES,
    )  # fmt: skip


def _prepare(folder: Path) -> None:
    log, seen = log_of(folder), result_log_of(folder)
    engine = find_engine(folder, log)
    with engine.running(with_networks=False):
        make_images(engine, seen)
    with seen.trying("Kubernetes' programs") as row:
        prepare_programs(folder, log, row)


def _try_cluster(folder: Path) -> None:
    listen_for_containers()
    engine = find_engine(folder, log_of(folder))
    with engine.running(with_networks=True, runtime=write_runtime(folder)):
        stack = Stack(engine, folder / "cluster-files")
        stack.make_files({})
        node = Node(engine, folder / "node", programs_of(folder))
        with node.running(), node.forwarding(PORTS):
            try_all(Cluster(stack, node), result_log_of(folder))


RUN = Run(
    "cluster-run", "tests.studies.containers.cluster",
    {"preparing": _prepare, "trial": _try_cluster}, frozenset({"trial"}), _missing_requirements,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(RUN.main())
