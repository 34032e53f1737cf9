"""Workers that have left their pool, with the reason, as the Prefect server keeps it.

Prefect knows of a worker only that it is silent. Which of its own checks it failed is a variable of
the server's, so that it is read on any machine: in `handoff status`, and in Prefect's UI. It is
gone when the worker is back.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.printable import one_line
from handoff.infra.prefect.prefect_api import connected_client, write_variable
from handoff.infra.settings import Settings, prefect_login

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_PREFIX = "handoff-left-"
# A variable holds 5000 characters.
_MAX_CHARACTERS = 1500
# A machine that has said nothing for a day has been taken away.
_MAX_AGE = timedelta(days=1)


@dataclass(frozen=True)
class Absence:
    """Which worker left which pool, why, and what to do; `since` and `looked` are ISO 8601.

    `looked` is when it failed its checks last.
    """

    pool: str
    worker: str
    machine: str
    since: str
    looked: str
    why: str
    remedy: str

    @classmethod
    def of(cls, pool: str, worker: str, error: HandoffError, since: str = "") -> Absence:
        """Return the absence of a worker of this machine, which lacks what the error says."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        why, remedy = (
            one_line(error.got)[:_MAX_CHARACTERS],
            one_line(error.remedy)[:_MAX_CHARACTERS],
        )
        return cls(pool, worker, platform.node(), since or now, now, why, remedy)

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            f"The worker {self.worker} on {self.machine} left {self.pool} at {self.since}: "
            f"{self.why}. {self.remedy}"
        )


def report_absence(settings: Settings, absence: Absence) -> None:
    """Keep the absence on the server, and take the worker out of its pool.

    That a server can't be asked is not reported: the worker's own log says the same.
    """
    with _open_server_client(settings) as client:
        write_variable(client, _variable_name(absence.pool, absence.worker), asdict(absence))
        # It is taken for online, and waited for, as long as its silence may be an accident.
        path_params = {"work_pool_name": absence.pool, "name": quote(absence.worker, safe="")}
        client.request(
            "DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=path_params
        )


def clear_absence(settings: Settings, pool: str, worker: str) -> None:
    """Forget that a worker left: it is back."""
    from prefect.exceptions import ObjectNotFound

    with _open_server_client(settings) as client:
        try:
            client.delete_variable_by_name(_variable_name(pool, worker))
        except ObjectNotFound:
            return


def read_absences(client: SyncPrefectClient) -> list[Absence]:
    """Return the workers that left, and were heard of within a day; the first to leave first."""
    oldest = (datetime.now(UTC) - _MAX_AGE).isoformat()
    absences = [
        _parse(variable.value) for variable in client.read_variables()
        if variable.name.startswith(_PREFIX)
    ]  # fmt: skip
    recent = [absence for absence in absences if absence is not None and absence.looked >= oldest]
    return sorted(recent, key=lambda absence: absence.since)


def fetch_absences(api: str, login: str) -> list[Absence]:
    """Return the same from the server at an address; raise `EnvironmentLacking` without one."""
    with connected_client(
        api, login, "to be asked which workers left", "that question", "Then ask again"
    ) as client:
        return read_absences(client)


def _variable_name(pool: str, worker: str) -> str:
    return _PREFIX + digest_bytes(f"{pool}/{worker}".encode()).hex[:16]


def _parse(value: Any) -> Absence | None:  # noqa: ANN401 - whatever somebody has put there
    try:
        return Absence(**{name: one_line(str(field)) for name, field in value.items()})
    except (AttributeError, TypeError):
        return None


@contextmanager
def _open_server_client(settings: Settings) -> Iterator[SyncPrefectClient]:
    """Give a client of the server; that it can't be asked ends the body, and nothing else."""
    with (
        # The last: what answers there isn't what a Prefect server answers.
        suppress(HandoffError, ValueError),
        connected_client(
            settings.prefect_api, prefect_login(),
            "to keep why a worker left", "a variable", "The worker's log has it",
        ) as client,
    ):  # fmt: skip
        yield client
