"""The program of a flow run that a worker starts: `python -m handoff.infra.prefect.flow_run`.

It gives the flow its machine's settings, takes cores of its own where its worker shares them out,
ends when its worker does, and leaves the rest to Prefect, which names the run in the environment.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path

from handoff.flows import host
from handoff.infra.prefect.pools import take_cores
from handoff.infra.prefect.tracing import trace_runs
from handoff.infra.settings import read_host_settings, read_settings, require_writable_home

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel ask this process to end when its parent does, however that ends.

    Without, a run whose worker was killed would go on beside the one that takes its place.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the worker ended before its run began")


def main() -> None:
    """Run the flow run that Prefect's variables name."""
    end_with_parent(os.getppid())
    settings = read_settings()
    require_writable_home(settings)
    if cores := take_cores(os.environ, Path(tempfile.gettempdir())):
        os.environ.setdefault("OMP_NUM_THREADS", str(len(cores)))
    host.provide(lambda: read_host_settings(settings, is_worker=True))
    with trace_runs():
        runpy.run_module("prefect.engine", run_name="__main__")


if __name__ == "__main__":
    main()
