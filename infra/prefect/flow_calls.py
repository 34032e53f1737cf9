"""Flows that a command runs in its own process, with Prefect embedded or a server that records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, first_line
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.engine.standing import empty_folder
from handoff.infra.prefect.embedded_server import begin_server
from handoff.infra.prefect.orphans import end_orphans_later
from handoff.infra.settings import Settings, read_site
from handoff.infra.terminal.interruption import ending_soon

T = TypeVar("T")


def call_flow(settings: Settings, workspace: Path | None, load: Callable[[], Callable[[], T]]) -> T:
    """Return what the function returns that `load` returns, which calls a flow.

    Flows are to be imported in `load`: Prefect reads its settings when it is imported, and its
    embedded server starts meanwhile. `workspace` is the folder of a build that is open already.
    Raises `HandoffError` alone.
    """
    prepare_prefect(settings)
    server = None
    if settings.is_embedded:
        end_orphans_later()
        server = begin_server(empty_folder(settings.home))
    from handoff.flows import site

    site.tell(lambda: read_site(settings, workspace))
    try:
        with ending_soon():
            flow = load()
            if server is not None:
                server.wait()
            return flow()
    except HandoffError:
        raise
    except Exception as error:
        # What is left is Prefect's own: a server that can't be reached, or doesn't let us in.
        raise EnvironmentLacking(
            "Prefect could not run the flow",
            expected=settings.prefect_api or "an embedded server that starts",
            got=first_line(error),
            remedy="Look at PREFECT_API_URL and whether that server is up, or unset it to run "
            "embedded; --debug shows the trace",
        ) from error
