"""The webhook: verified requests of GitHub, GitLab, S3 and our own become release runs.

A request passes, in this order: its path and method, the limit of its address, its size and type,
its signature, the memory of what was seen, the limits of its source and of all, and only then its
meaning is looked at. What doesn't pass is answered in one line that gives no hint.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from handoff.artifacts.errors import HandoffError, UsageProblem
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.events import PayloadInvalid, arrivals_of, is_authentic, replay_key
from handoff.infra.triggers.hooks import Kind, Limits, SourceWithSecret
from handoff.infra.triggers.poster import PostedRun
from handoff.infra.triggers.spool import DiskFull, SpooledArrival

T = TypeVar("T")
_MOST_KEYS = 10_000
_MOST_SEEN = 20_000
_SEEN_S = 24 * 3600.0


class TokenBuckets:
    """A token bucket for each key: so many requests a minute, and as many at once."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Fill buckets with `per_minute` tokens a minute; `clock` is in seconds."""
        self._capacity = per_minute
        self._clock = clock
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str = "") -> bool:
        """Take a token of a key's bucket; return whether there was one."""
        now = self._clock()
        tokens, updated = self._tokens.pop(key, (self._capacity, now))
        tokens = min(self._capacity, tokens + (now - updated) * self._capacity / 60)
        self._tokens[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        # Whoever comes with ever other addresses drives out others like them.
        while len(self._tokens) > _MOST_KEYS:
            self._tokens.popitem(last=False)
        return tokens >= 1


class AnswerCache(Generic[T]):
    """What was accepted within a day, with the answer that was given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet."""
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def find(self, key: bytes) -> T | None:
        """Return the answer that `key` had; None where it wasn't seen."""
        entry = self._answers.get(key)
        return entry[1] if entry and self._clock() - entry[0] < _SEEN_S else None

    def keep(self, key: bytes, answer: T) -> None:
        """Remember the answer; the oldest are forgotten."""
        self._answers[key] = (self._clock(), answer)
        while len(self._answers) > _MOST_SEEN:
            self._answers.popitem(last=False)


def address_group(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "?"
    if parsed.version == 4:
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))


LOGGER = logging.getLogger("handoff.webhook")
ENDPOINTS: tuple[Kind, ...] = ("github", "gitlab", "s3", "handoff")
# GitHub gives up after 10 s.
_BODY_LIMIT_S = 10.0
# GitHub's number of an event: its "Redeliver" sends the same one.
_REDELIVERED = "x-github-delivery"
_IGNORED = "not an event that is released"
_POST_LIMIT_S = 8.0
_REFUSALS = {
    400: "not understood", 401: "not authorized", 404: "not found", 405: "method not allowed",
    408: "too slow", 413: "too large", 415: "JSON only", 422: "can't be released",
    429: "too many requests", 500: "failed", 503: "not now",
    507: "Nothing was accepted: the disk on which commits are kept is full. Send it again when "
    "there is room on it",
}  # fmt: skip


class ArrivalPoster(Protocol):
    """What posts an arrival in time (`infra.triggers.serving.PostingThreads`)."""

    async def post(
        self, arrival: Arrival, policy: Policy, *, limit_s: float
    ) -> PostedRun | SpooledArrival:
        """Return the run, or what is kept until there is one; raise `HandoffError`."""

    async def retry(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> PostedRun:
        """Return the run of what is sent again; raise `HandoffError` or `TimeoutError`."""

    def close(self) -> None:
        """End."""


class _Refusal(Exception):
    """The request ends here, with this status; `why` is for the log alone."""

    def __init__(self, status: int, why: str = "") -> None:
        self.status = status
        self.why = why
        super().__init__(why)


@dataclass(frozen=True)
class _CachedAnswer:
    """The answer that an event had, and the number that its sender gave it."""

    answer: dict[str, object]
    delivery: str


@dataclass
class _RequestLog:
    """What the log line says of a request."""

    source: str = "-"
    notes: list[str] = field(default_factory=list)


class Webhook:
    """Answers requests."""

    def __init__(
        self, sources: Sequence[SourceWithSecret], limits: Limits, posts: ArrivalPoster, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Answer for `sources`; runs are posted by `posts`. Limits go by `clock`, in seconds."""
        self._sources = sources
        self._limits = limits
        self._poster = posts
        self._addresses = TokenBuckets(limits.per_address_per_minute, clock)
        self._labels = TokenBuckets(limits.per_source_per_minute, clock)
        self._all = TokenBuckets(limits.overall_per_minute, clock)
        self._seen: AnswerCache[_CachedAnswer] = AnswerCache(clock)

    def application(self) -> Starlette:
        """Return the ASGI application."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self._poster.close)

        application = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                *(Route(f"/{kind}", self._answer, methods=["POST"]) for kind in ENDPOINTS),
            ],
            exception_handlers={HTTPException: self._refuse_early, 500: self._fail},
            lifespan=lifespan,
        )
        application.router.redirect_slashes = False
        return application

    async def _health(self, _: Request) -> JSONResponse:
        return _json(200, {"status": "up"})

    async def _refuse_early(self, request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        _log(request, error.status_code, _RequestLog(), time.monotonic(), "-")
        return _json(error.status_code, {"error": _REFUSALS.get(error.status_code, "refused")})

    async def _fail(self, request: Request, error: Exception) -> JSONResponse:
        record = _RequestLog(notes=[type(error).__name__])
        _log(request, 500, record, time.monotonic(), request.url.path[:20])
        return _json(500, {"error": _REFUSALS[500]})

    async def _answer(self, request: Request) -> JSONResponse:
        began, record = time.monotonic(), _RequestLog()
        try:
            status, answer = await self._handle(request, record)
        except _Refusal as refusal:
            status, answer = refusal.status, {"error": _REFUSALS[refusal.status]}
            if refusal.why:
                record.notes.append(refusal.why)
        _log(request, status, record, began, request.url.path)
        return _json(status, answer)

    async def _handle(self, request: Request, record: _RequestLog) -> tuple[int, object]:
        address = request.client.host if request.client else ""
        if not self._addresses.take(address_group(address)):
            raise _Refusal(429)
        body = await self._read_body(request)
        kind = next(kind for kind in ENDPOINTS if request.url.path == f"/{kind}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        trusted = [
            each for each in self._sources
            if each.source.kind == kind and is_authentic(each, headers, body, time.time())
        ]  # fmt: skip
        if not trusted:
            raise _Refusal(401)
        record.source = trusted[0].source.label
        key, delivery = replay_key(kind, headers, body), headers.get(_REDELIVERED, "")[:100]
        cached = self._seen.find(key)
        # Whoever sends an event again under its own number asks for another try.
        is_retry = cached is not None and bool(delivery) and cached.delivery == delivery
        if cached is not None and not is_retry:
            record.notes.append("seen before")
            return 200, cached.answer
        if not self._labels.take(record.source) or not self._all.take():
            raise _Refusal(429)
        post = self._poster.retry if is_retry else self._poster.post
        runs, spooled = await self._post_all(trusted, headers, _parse(body), record, post)
        answer: dict[str, object] = {"runs": runs} if runs or spooled else {"ignored": _IGNORED}
        if spooled:
            answer["kept"] = spooled
        self._seen.keep(key, _CachedAnswer(answer, delivery))
        return (202 if runs or spooled else 200), answer

    async def _read_body(self, request: Request) -> bytes:
        """Return the body of a JSON request, if it comes in time and isn't too large."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or request.headers.get("content-encoding"):
            raise _Refusal(415)
        limit = self._limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and (len(length) > 12 or int(length) > limit):
            raise _Refusal(413)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_LIMIT_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > limit:
                        raise _Refusal(413)
        except TimeoutError:
            raise _Refusal(408) from None
        except ClientDisconnect:
            raise _Refusal(400, "the sender went away") from None
        return bytes(body)

    async def _post_all(
        self, trusted: Sequence[SourceWithSecret], headers: dict[str, str], payload: Any,  # noqa: ANN401 - JSON
        record: _RequestLog,
        post: Callable[..., Awaitable[PostedRun | SpooledArrival]],
    ) -> tuple[list[dict[str, object]], list[str]]:  # fmt: skip
        """Return the runs that there are, and what is kept until there is one."""
        deadline = time.monotonic() + _POST_LIMIT_S
        runs: list[dict[str, object]] = []
        waiting = []
        for sender in trusted:
            source = sender.source
            try:
                for arrival in arrivals_of(source, headers, payload):
                    left = max(0.1, deadline - time.monotonic())
                    posted = await post(arrival, source.policy, limit_s=left)
                    record.source = source.label
                    if isinstance(posted, SpooledArrival):
                        record.notes.append(f"{arrival.label}: kept")
                        waiting.append(arrival.label)
                        continue
                    record.notes.append(f"{arrival.label}: {posted.name} {posted.state}")
                    runs.append({"name": posted.name, "id": str(posted.id), "new": posted.is_new})
            except PayloadInvalid:
                raise _Refusal(400) from None
            except UsageProblem as error:
                raise _Refusal(422, str(error)) from None
            except TimeoutError:
                raise _Refusal(503, "the Prefect server took too long") from None
            except DiskFull as error:
                raise _Refusal(507, str(error)) from None
            except HandoffError as error:
                raise _Refusal(503, str(error)) from None
        return runs, waiting


def _parse(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _Refusal(400, "no JSON") from None


def _json(status: int, value: object) -> JSONResponse:
    # One request a connection: no idle one is left to hold.
    headers = {"Connection": "close", "Cache-Control": "no-store"}
    if status in (429, 503, 507):
        headers["Retry-After"] = "30"
    return JSONResponse(value, status, headers)


def _log(request: Request, status: int, record: _RequestLog, began: float, path: str) -> None:
    """Write one line, in which nothing stands that an unverified sender chose."""
    address = request.client.host if request.client else "?"
    notes = "".join(c if c.isprintable() else "?" for c in "; ".join(record.notes))[:500]
    took_ms = (time.monotonic() - began) * 1e3
    level = logging.INFO if status < 400 else logging.WARNING
    LOGGER.log(
        level, "%s %s %d %s %.0f ms %s", address, path, status, record.source, took_ms, notes
    )  # fmt: skip
