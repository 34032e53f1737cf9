"""A conversation with MLflow: one client, patience with what fails for a while, told failures."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from handoff.artifacts.errors import HandoffError, RegistryFailed
from handoff.artifacts.mlflow.database import database_file, make_database
from handoff.artifacts.mlflow.retrying import Patience

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")


class Session:
    """MLflow's client for one task, every request of which may be made again."""

    def __init__(self, tracking_uri: str, limit_s: float) -> None:
        """Connect at the first request."""
        self.tracking_uri = tracking_uri
        self._patience = Patience(limit_s)
        self._made: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """MLflow's own client; its methods go through `call`."""
        if self._made is None:
            self._made = self._patience.call(_connect, self.tracking_uri)
        return self._made

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:  # noqa: ANN401
        """Return what the call returns, made again while its failure is a passing one."""
        return self._patience.call(function, *arguments, **named)

    def pages(self, search: Any, *arguments: Any, **query: Any) -> Iterator[Any]:  # noqa: ANN401
        """Give what a search of the client's finds, page after page."""
        token = None
        while True:
            page = self.call(search, *arguments, page_token=token, **query)
            yield from page
            token = page.token
            if not token:
                return

    def create_once(self, create: Any, *arguments: Any) -> None:  # noqa: ANN401
        """Create what may be there already, or be created by another registrar just now."""
        from mlflow.exceptions import MlflowException

        try:
            self.call(create, *arguments)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def delete_once(self, delete: Any, *arguments: Any) -> None:  # noqa: ANN401
        """Delete what may be gone already: by another registrar, or by a lost answer's request."""
        from mlflow.exceptions import MlflowException

        try:
            self.call(delete, *arguments)
        except MlflowException as error:
            is_gone = "must be in the 'active' state" in str(error)
            if error.error_code != "RESOURCE_DOES_NOT_EXIST" and not is_gone:
                raise

    @property
    def is_empty(self) -> bool:
        """Tell whether the embedded database isn't there yet: reading should not create it."""
        file = database_file(self.tracking_uri)
        return file is not None and not file.exists()


@contextmanager
def told_session(tracking_uri: str, limit_s: float, what: str) -> Iterator[Session]:
    """Give a session; raise `RegistryFailed`, which tells that MLflow could not do `what`."""
    from mlflow.exceptions import MlflowException

    try:
        yield Session(tracking_uri, limit_s)
    except HandoffError:
        raise
    except Exception as error:
        # MLflow lets through what its database, its HTTP client and boto3 raise.
        kind = type(error).__name__
        told = str(error) if isinstance(error, MlflowException) else kind
        raise RegistryFailed(
            f"MLflow could not {what}",
            expected=f"MLflow at {_without_secret(tracking_uri)}, in working order",
            got=_without_secret((told.strip().splitlines() or [kind])[0][:300]),
            remedy="Look at MLFLOW_TRACKING_URI, and whether the server and its store are up; "
            "then run the same command again",
        ) from error


def _connect(tracking_uri: str) -> MlflowClient:
    """Return a client that sends no telemetry, logs no migrations and retries nothing itself."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # MLflow reads its settings from the environment only, and it sets defaults there itself.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # What a registrar writes to its standard output is its answer.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # It would make a request again that may have been done, and so create things twice.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    from mlflow import MlflowClient

    def ask(uri: str) -> MlflowClient:
        client = MlflowClient(uri, registry_uri=uri)
        # A database gets its tables at the first question.
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
        return client

    if file := database_file(tracking_uri):
        make_database(file, ask)
    return ask(tracking_uri)


def _without_secret(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)
