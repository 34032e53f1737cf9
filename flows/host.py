"""The settings of the host that this process runs flows on: its stores, its key, its folders."""

from __future__ import annotations

from collections.abc import Callable

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.host import HostSettings

_readers: list[Callable[[], HostSettings]] = []


def provide(reader: Callable[[], HostSettings]) -> None:
    """Let the flows of this process ask `reader` for their host's settings."""
    _readers[:] = [reader]


def is_worker() -> bool:
    """Return whether this process runs a flow for a worker of a stack."""
    return bool(_readers) and _readers[0]().is_worker


def host_settings() -> HostSettings:
    """Return this host's settings; raise `EnvironmentLacking` where nobody provides them."""
    if not _readers:
        raise EnvironmentLacking(
            "this process doesn't know its stores and keys",
            expected="a flow run that 'handoff' or a worker of 'handoff worker' has started",
            got="one that was started by Prefect alone",
            remedy="Start flow runs by 'python -P -m handoff.infra.prefect.flow_run', "
            "as the deployments of 'handoff deploy' do",
        )
    return _readers[0]()
