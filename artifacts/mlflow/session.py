"""A conversation with MLflow: one client, retries of what fails for a while, errors in sentences.

A locked SQLite database, a server that starts again, an S3 that is busy: such a call is made
again, with growing pauses, until it succeeds or the time for that is up.

A database in a file is made whole, or not at all: MLflow makes its tables in some forty migrations,
which takes seconds. A process that was killed in between leaves a file that no later one can use,
since a migration doesn't expect its own half.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from handoff.artifacts.errors import HandoffError, RegistryFailed
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.writing import UnfinishedFiles
from handoff.artifacts.waiting import Backoff

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_TRANSIENT_CODES = frozenset(
    {"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED"}
)
# What SQLite says of another process that writes, or that is making the tables just now.
_TRANSIENT_WORDS = re.compile(r"database is locked|table .{0,80}already exists|no such table")
# What boto3 wraps into words only, and no later attempt fixes.
_PERMANENT_WORDS = re.compile(r"AccessDenied|NoSuchBucket|InvalidAccessKeyId|SignatureDoesNotMatch")


def import_mlflow() -> None:
    """Import MLflow before a session asks for it."""
    import mlflow  # noqa: F401


class Session:
    """MLflow's client for one task, every request of which may be made again."""

    def __init__(self, tracking_uri: str, limit_s: float) -> None:
        """Connect at the first request."""
        self.tracking_uri = tracking_uri
        self._retries = RetryBudget(limit_s)
        self._client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """MLflow's own client; its methods go through `call`."""
        if self._client is None:
            self._client = self._retries.call(_connect, self.tracking_uri)
        return self._client

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:  # noqa: ANN401
        """Return what the call returns, made again while its failure is a passing one."""
        return self._retries.call(function, *arguments, **named)

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
        """Return whether the embedded database isn't there yet: reading should not create it."""
        file = database_file(self.tracking_uri)
        return file is not None and not file.exists()


@contextmanager
def open_session(tracking_uri: str, limit_s: float, what: str) -> Iterator[Session]:
    """Give a session; raise `RegistryFailed`, which says that MLflow could not do `what`."""
    from mlflow.exceptions import MlflowException

    try:
        yield Session(tracking_uri, limit_s)
    except HandoffError:
        raise
    except Exception as error:
        # MLflow lets through what its database, its HTTP client and boto3 raise.
        kind = type(error).__name__
        message = str(error) if isinstance(error, MlflowException) else kind
        raise RegistryFailed(
            f"MLflow could not {what}",
            expected=f"MLflow at {_strip_login(tracking_uri)}, in working order",
            got=_strip_login((message.strip().splitlines() or [kind])[0][:300]),
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

    def connect(uri: str) -> MlflowClient:
        client = MlflowClient(uri, registry_uri=uri)
        # A database gets its tables at the first question.
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
        return client

    if file := database_file(tracking_uri):
        make_database(file, connect)
    return connect(tracking_uri)


def _strip_login(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def database_file(tracking_uri: str) -> Path | None:
    """Return the file of an embedded database; None for another one, or for a server."""
    path = tracking_uri.removeprefix("sqlite:///")
    return Path(path) if path not in (tracking_uri, "", ":memory:") else None


def make_database(file: Path, make_tables: Callable[[str], object]) -> None:
    """Make the database in `file`, unless it is there; `make_tables` does so at another URI."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with lock_folder(file.parent) as folder:
        if file.exists():
            return
        unfinished = UnfinishedFiles(file.parent / ".unfinished")
        with unfinished.open() as (tables_file, _), unfinished.open() as (copy_file, _):
            make_tables(f"sqlite:///{tables_file}")
            # A copy, because what made the tables holds its file open still.
            with (
                closing(sqlite3.connect(tables_file)) as source,
                closing(sqlite3.connect(copy_file)) as copy,
            ):
                source.backup(copy)
            copy_file.replace(file)
        os.fsync(folder)


class RetryBudget:
    """So many seconds, in all, that failing calls and the pauses after them may take."""

    def __init__(self, limit_s: float) -> None:
        """Begin with nothing spent."""
        self._left_s = limit_s

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:  # noqa: ANN401
        """Return what the call returns; raise its error when that is lasting or time is up.

        Only for calls that do no harm when they are made twice: an answer may be lost after the
        work was done.
        """
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            begun = time.monotonic()
            try:
                return function(*arguments, **named)
            except Exception as error:
                self._left_s -= time.monotonic() - begun + pauses.next_s
                if self._left_s < 0 or not is_transient(error):
                    raise
            pauses.take()


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed a moment later."""
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as Unconnected
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    if _TRANSIENT_WORDS.search(str(error)):
        return True
    if isinstance(error, MlflowException):
        # Some of MLflow's calls report what failed below them as a fault of the caller's.
        cause = error.__cause__
        return error.error_code in _TRANSIENT_CODES or (cause is not None and is_transient(cause))
    if isinstance(error, ClientError):
        return _is_transient_status(error.response["ResponseMetadata"].get("HTTPStatusCode"))
    if isinstance(error, RequestException):
        return error.response is None or _is_transient_status(error.response.status_code)
    if isinstance(error, S3UploadFailedError):
        return not _PERMANENT_WORDS.search(str(error))
    return isinstance(error, (Unconnected, HTTPClientError))


def _is_transient_status(status: int | None) -> bool:
    return status is None or status >= 500 or status in (408, 429)
