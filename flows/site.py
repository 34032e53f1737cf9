"""Where a flow runs, and what flows, pools and tags are called on a Prefect server."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.site import Site

# The tag of every run, and the name of every deployment that isn't a target's.
TAG = "handoff"
# The tag of the runs that `resume` starts again after a crash.
RESUME_TAG = "handoff-resume"

CONTROL_POOL = "handoff-control"
BUILD_POOL = "handoff-build"


def deployed(flow: str, name: str = TAG) -> str:
    """Return the full name of a flow's deployment, `flow/name`."""
    return f"{flow}/{name}"


def target_pool(slug: str) -> str:
    """Return the pool of the machines that have a target's hardware."""
    return f"handoff-{slug}"


RELEASE = deployed("release")
RECOMPILE = deployed("recompile")
RECOMPILE_MODEL = deployed("recompile-model")
CONFORMANCE = deployed("conformance")
RESUME = deployed("resume")


_readers: list[Callable[[], Site]] = []


def tell(reader: Callable[[], Site]) -> None:
    """Let the flows of this process ask `reader` for their site."""
    _readers[:] = [reader]


def is_worker() -> bool:
    """Tell whether this process runs a flow for a worker of a stack."""
    return bool(_readers) and _readers[0]().is_worker


def here() -> Site:
    """Return the site of this process; raise `EnvironmentLacking` where nobody has told it."""
    if not _readers:
        raise EnvironmentLacking(
            "this process doesn't know its stores and keys",
            expected="a flow run that 'handoff' or a worker of 'handoff worker' has started",
            got="one that was started by Prefect alone",
            remedy="Start flow runs by 'python -P -m handoff.infra.prefect.flow_run', "
            "as the deployments of 'handoff deploy' do",
        )
    return _readers[0]()
