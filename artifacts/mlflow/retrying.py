"""Calls of MLflow, its database and its artifact store that may fail for a while.

A locked SQLite database, a server that starts again, an S3 that is busy: such a call is made
again, with growing pauses, until it succeeds or the time for that is up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from handoff.artifacts.waiting import Pauses

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_PASSING_CODES = frozenset({"TEMPORARILY_UNAVAILABLE", "INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED"})
# What SQLite says of another process that writes, or that is making the tables just now.
_PASSING_WORDS = re.compile(r"database is locked|table .{0,80}already exists|no such table")
# What boto3 wraps into words only, and no later attempt mends.
_LASTING_WORDS = re.compile(r"AccessDenied|NoSuchBucket|InvalidAccessKeyId|SignatureDoesNotMatch")


class Patience:
    """So many seconds, in all, that failing calls and the pauses after them may take."""

    def __init__(self, limit_s: float) -> None:
        """Begin with nothing spent."""
        self._left_s = limit_s

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:  # noqa: ANN401
        """Return what the call returns; raise its error when that is lasting or time is up.

        Only for calls that do no harm when they are made twice: an answer may be lost after the
        work was done.
        """
        pauses = Pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            begun = time.monotonic()
            try:
                return function(*arguments, **named)
            except Exception as error:
                self._left_s -= time.monotonic() - begun + pauses.next_s
                if self._left_s < 0 or not is_passing(error):
                    raise
            pauses.take()


def is_passing(error: BaseException) -> bool:
    """Tell whether the same call may succeed a moment later."""
    from boto3.exceptions import S3UploadFailedError
    from botocore.exceptions import ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as Unconnected
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    if _PASSING_WORDS.search(str(error)):
        return True
    if isinstance(error, MlflowException):
        # Some of MLflow's calls tell what failed below them as a fault of the caller's.
        below = error.__cause__
        return error.error_code in _PASSING_CODES or (below is not None and is_passing(below))
    if isinstance(error, ClientError):
        return _is_passing_status(error.response["ResponseMetadata"].get("HTTPStatusCode"))
    if isinstance(error, RequestException):
        return error.response is None or _is_passing_status(error.response.status_code)
    if isinstance(error, S3UploadFailedError):
        return not _LASTING_WORDS.search(str(error))
    return isinstance(error, (Unconnected, HTTPClientError))


def _is_passing_status(status: int | None) -> bool:
    return status is None or status >= 500 or status in (408, 429)
