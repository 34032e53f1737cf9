"""What Prefect's client raises, as the sentences of who tells of a commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from handoff.artifacts.errors import EnvironmentLacking
from handoff.flows.names import BUILD_POOL, RELEASE
from handoff.infra.prefect.prefect_api import told_in_sentences

_LATER = "The nightly makes up for a commit that isn't told, or 'handoff notify' later"


@contextmanager
def told_of_prefect() -> Iterator[None]:
    """Turn what Prefect's client raises into sentences."""
    from prefect.exceptions import ObjectNotFound

    try:
        with told_in_sentences("the run", "parameters that its form takes", _LATER):
            yield
    except ObjectNotFound as error:
        raise EnvironmentLacking(
            "the Prefect server doesn't know what a commit is told to",
            expected=f"the deployment {RELEASE} and the work pool {BUILD_POOL}",
            got="none of that name", remedy="Run 'handoff deploy' once",
        ) from error  # fmt: skip
