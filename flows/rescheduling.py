"""What fails for a machine's sake is no refusal: the run goes back to its pool, for another worker.

Prefect's own retries stay in the process, and so on the machine, that failed. A worker that is
asked to end gives its runs back in this way, too (Prefect 3.8, `runner/_state_proposer.py`): the
state AwaitingRetry is proposed from within, and the process leaves.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import AwaitingRetry
from prefect.utilities.engine import propose_state_sync

from handoff.artifacts.errors import (
    EnvironmentLacking,
    HandoffError,
    attribute_to_machine,
    first_line,
)
from handoff.artifacts.host import HostSettings

# What lacks on three machines, or on one for minutes, is for a person to look at.
MOST_TRIES = 3

LOGGER = logging.getLogger("handoff.release")


@contextmanager
def reschedule_machine_faults(host: HostSettings) -> Iterator[None]:
    """Let another worker try what fails in the body for this machine's sake; it is named there.

    The run then leaves this process, and waits in its pool. Where it was tried often enough, and
    where no worker runs it, the error is raised.
    """
    try:
        yield
    except (HandoffError, OSError) as error:
        fault = _machine_fault(error)
        if fault is None or not host.is_worker or not flow_run.id:
            raise
        named_fault = attribute_to_machine(fault, platform.node())
        run = UUID(flow_run.id)
        with get_client(sync_client=True) as client:
            tries = client.read_flow_run(run).run_count
            if tries >= MOST_TRIES:
                raise named_fault from error
            message = (
                f"{named_fault}. Another worker is asked: this was try {tries} of {MOST_TRIES}"
            )
            LOGGER.warning(message)
            state = propose_state_sync(client, AwaitingRetry(message=message), flow_run_id=run)
        raise Pause(state=state) from error


def _machine_fault(error: HandoffError | OSError) -> HandoffError | None:
    """Return the error where it says nothing of the delivery; None for one that may."""
    if isinstance(error, OSError):
        return EnvironmentLacking(
            "a file or a program could not be used", expected="one that is there, and can be",
            got=first_line(error), remedy="'handoff doctor' says what lacks there; fix that",
        )  # fmt: skip
    return error if error.is_machine_fault else None
