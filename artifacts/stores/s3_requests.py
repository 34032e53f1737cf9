"""Requests to S3: what is tried again, for how long, and the sentence when it was in vain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from handoff.artifacts.errors import StoreUnreachable
from handoff.artifacts.stores.store import missing_key
from handoff.artifacts.waiting import Backoff

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from botocore.loaders import Loader
    from mypy_boto3_s3 import S3Client

Result = TypeVar("Result")

# Of what a server answers below 500: busy, a race that it wants repeated, or a body that arrived
# damaged. A signature covers the body's digest, so a server may name it as what doesn't fit.
_TRANSIENT_CODES = frozenset({
    "429", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests",
    "RequestTimeout", "RequestTimeoutException", "ConditionalRequestConflict", "OperationAborted",
    "BadDigest", "InvalidDigest", "IncompleteBody", "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
})  # fmt: skip
_ABSENCES = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchUpload", "NoSuchVersion"})
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 8.0


class TransferCorrupted(Exception):
    """Bytes that came or went are not all of them, or not those: worth another try."""


def make_client(patience_s: float) -> S3Client:
    """Return a client whose every request ends well within `patience_s`, and is sent once.

    Credentials, endpoint and region are read by boto3 itself.
    """
    import boto3
    import botocore.session
    from botocore.config import Config

    retries: Any = {"total_max_attempts": 1}
    config = Config(
        retries=retries,
        connect_timeout=min(5.0, max(0.5, patience_s / 6)),
        read_timeout=min(20.0, max(1.0, patience_s / 3)),
        # Each write names its own checksum. What boto3 would add is a trailer that older servers
        # refuse, and what it would compare fails on those that send a whole object's for a part.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # A session of its own: the one that boto3 shares keeps the credentials that it saw first.
    session = botocore.session.get_session()
    session.register_component("data_loader", _make_loader())
    return boto3.session.Session(botocore_session=session).client("s3", config=config)


@cache
def _make_loader() -> Loader:
    """Return what reads boto3's descriptions of S3, which takes nine tenths of a new client."""
    from botocore.loaders import create_loader

    return create_loader()


class Requests:
    """Runs requests to one store, again and again while what is wrong may pass."""

    def __init__(self, location: str, patience_s: float) -> None:
        """Give up after `patience_s` seconds; a request that hangs may add its own timeout."""
        self.location = location
        self.patience_s = patience_s

    def run(self, what: str, operation: Callable[[], Result], key: str = "") -> Result:
        """Return the operation's result; raise `StoreUnreachable`: the store can't `what`.

        Pauses in between grow from 0.2 s to 8 s.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        of_boto3 = (ClientError, BotoCoreError, ResponseParserError)
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, limit_s=self.patience_s)
        while True:
            try:
                return operation()
            except (*of_boto3, TransferCorrupted, ConnectionError, TimeoutError) as error:
                if key and isinstance(error, ClientError) and code_of(error) == "NoSuchKey":
                    raise missing_key(key, self.location) from None
                got = _describe_error(error)
                if not _is_transient(error):
                    raise self._failure(what, got) from None
                if pauses.are_over:
                    got += f", again and again for {pauses.waited_s:.0f} seconds"
                    raise self._failure(what, got) from None
            pauses.take()

    def _failure(self, what: str, got: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"the store {self.location} can't {what}",
            expected="a bucket that these credentials may list, read and write", got=got,
            remedy="Look at HANDOFF_STORE, AWS_ENDPOINT_URL and the credentials, and whether the "
            "store is up; then run the same command again",
        )  # fmt: skip


def run_ahead(tasks: Iterable[Callable[[], Result]], width: int = 4) -> Iterator[Result]:
    """Run tasks in threads and give their results in order; at most `width` are held at once."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(width) as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) == width:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def code_of(error: ClientError) -> str:
    """Return the code that S3 gave, such as `NoSuchKey`, or a status where it gave none."""
    return str(error.response.get("Error", {}).get("Code") or status_of(error))


def status_of(error: ClientError) -> int:
    """Return the answer's HTTP status."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_absence(error: ClientError) -> bool:
    """Return whether the answer is that the key isn't there (HEAD answers can't say more)."""
    return code_of(error) in {"404", "NoSuchKey", "NotFound"}


def is_refused_condition(error: ClientError) -> bool:
    """Return whether the answer is that `If-None-Match` doesn't hold: the key is there."""
    return status_of(error) == 412


def _is_transient(error: Exception) -> bool:
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        status = status_of(error)
        # 501 is a server that will never know what was asked of it.
        # An absence without a known word for it is an answer that was damaged on its way. (HEAD has
        # no words; who asks by it looks at the status.)
        is_damaged = status == 404 and code_of(error) not in _ABSENCES
        is_busy = status == 429 or (status >= 500 and status != 501)
        return code_of(error) in _TRANSIENT_CODES or is_busy or is_damaged
    if isinstance(error, exceptions.SSLError):
        return False
    transient = (
        TransferCorrupted, ConnectionError, TimeoutError, ResponseParserError,
        exceptions.HTTPClientError, exceptions.ConnectionError,
        exceptions.IncompleteReadError, exceptions.FlexibleChecksumError,
    )  # fmt: skip
    return isinstance(error, transient)


def _describe_error(error: Exception) -> str:
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return code_of(error)
    return str(error) if isinstance(error, TransferCorrupted) else type(error).__name__
