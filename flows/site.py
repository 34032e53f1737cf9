"""Where a flow runs: set by whoever starts it, since no flow reads the environment."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.site import Site

_readers: list[Callable[[], Site]] = []


def tell(reader: Callable[[], Site]) -> None:
    """Let the flows of this process ask `reader` for their site."""
    _readers[:] = [reader]


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
