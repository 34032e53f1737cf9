"""A client of the Prefect server, and in sentences what goes wrong between it and a command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem, first_line
from handoff.artifacts.printable import one_line
from handoff.infra.servers import is_loopback
from handoff.infra.settings import Key

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


class ServerBusy(EnvironmentLacking):
    """The server answered that it can't just now."""


@contextmanager
def explain_prefect_errors(what: str, expected: str, remedy: str) -> Iterator[None]:
    """Turn what Prefect's client raises into sentences.

    `what` is asked of the server; where it refuses that, `expected` is what it takes. `remedy` is
    said where it can't be reached. That it doesn't know something stays `ObjectNotFound`.
    """
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        yield
    except (PrefectHTTPStatusError, httpx.HTTPStatusError) as error:
        raise _status_error(error, what, expected) from error
    except (httpx.HTTPError, OSError) as error:
        raise EnvironmentLacking(
            "the Prefect server can't be reached", expected="an answer from PREFECT_API_URL",
            got=first_line(error, 200),
            remedy=f"Is it up ('handoff up' starts one)? {remedy}",
        ) from error  # fmt: skip
    except json.JSONDecodeError as error:
        raise EnvironmentLacking(
            "what answers is no Prefect server", expected="a JSON answer from PREFECT_API_URL",
            got=one_line(error.doc)[:60] or "an empty one",
            remedy="Fix PREFECT_API_URL: it ends in /api",
        ) from error  # fmt: skip


def open_client(api: str, login: str) -> SyncPrefectClient:
    """Return a client of the server at an address; to this machine's own no proxy is between."""
    from prefect.client.orchestration import SyncPrefectClient

    settings: dict[str, Any] = {"trust_env": not is_loopback(api)}
    if isinstance(login, Key):
        return SyncPrefectClient(api, api_key=login, httpx_settings=settings)
    return SyncPrefectClient(api, auth_string=login or None, httpx_settings=settings)


@contextmanager
def connected_client(
    api: str, login: str, what: str, expected: str, remedy: str
) -> Iterator[SyncPrefectClient]:
    """Give a client of the server at an address.

    `explain_prefect_errors` puts its errors into words, and those of the body.
    """
    with explain_prefect_errors(what, expected, remedy), open_client(api, login) as client:
        yield client


def write_variable(client: SyncPrefectClient, name: str, value: dict[str, Any]) -> None:
    """Let the server hold a variable of ours, in the place of what it held by that name."""
    from prefect.client.schemas.actions import VariableCreate, VariableUpdate
    from prefect.exceptions import ObjectAlreadyExists

    try:
        client.create_variable(VariableCreate(name=name, value=value, tags=["handoff"]))
    except ObjectAlreadyExists:
        client.update_variable(VariableUpdate(name=name, value=value))


def _status_error(error: Any, what: str, expected: str) -> HandoffError:  # noqa: ANN401 - of httpx or of Prefect
    status = int(error.response.status_code)
    if status in (401, 403):
        return EnvironmentLacking(
            "the Prefect server doesn't let us in", expected="its login", got=f"HTTP {status}",
            remedy="Set PREFECT_API_AUTH_STRING as the server has it",
        )  # fmt: skip
    detail = "".join(itertools.islice(filter(str.isprintable, error.response.text), 300))
    if status in (409, 422):
        return UsageProblem(
            f"the Prefect server refuses {what}", expected=expected, got=detail,
            remedy="Fix it; 'handoff deploy' renews what the server holds",
        )  # fmt: skip
    kind = ServerBusy if status in (429, 503) else EnvironmentLacking
    return kind(
        "the Prefect server failed", expected="an answer", got=f"HTTP {status}: {detail}",
        remedy="Look at its log, and try again",
    )  # fmt: skip
