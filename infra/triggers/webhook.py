"""The webhook: verified requests of GitHub, GitLab, S3 and our own become release runs.

A request passes, in this order: its path and method, the limit of its address, its size and type,
its signature, the memory of what was seen, the limits of its source and of all, and only then its
meaning is looked at. What doesn't pass is told in one line that gives no hint.
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
from handoff.infra.triggers.events import NotUnderstood, arrivals_of, fits, mark
from handoff.infra.triggers.hooks import Guarded, Kind, Limits
from handoff.infra.triggers.posting import Posted
from handoff.infra.triggers.spool import Kept, NoRoom

T = TypeVar("T")
_MOST_KEYS = 10_000
_MOST_SEEN = 20_000
_SEEN_S = 24 * 3600.0


class Buckets:
    """A token bucket for each key: so many requests a minute, and as many at once."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Fill buckets with `per_minute` tokens a minute; `clock` is in seconds."""
        self._most = per_minute
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str = "") -> bool:
        """Take a token of a key's bucket; tell whether there was one."""
        now = self._clock()
        left, then = self._left.pop(key, (self._most, now))
        left = min(self._most, left + (now - then) * self._most / 60)
        self._left[key] = (left - 1 if left >= 1 else left, now)
        # Whoever comes with ever other addresses drives out others like them.
        while len(self._left) > _MOST_KEYS:
            self._left.popitem(last=False)
        return left >= 1


class Seen(Generic[T]):
    """What was accepted within a day, with the answer that was given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet."""
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def find(self, mark: bytes) -> T | None:
        """Return the answer that `mark` had; None where it wasn't seen."""
        found = self._answers.get(mark)
        return found[1] if found and self._clock() - found[0] < _SEEN_S else None

    def keep(self, mark: bytes, answer: T) -> None:
        """Remember the answer; the oldest are forgotten."""
        self._answers[mark] = (self._clock(), answer)
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


class PostsArrivals(Protocol):
    """What posts an arrival in time (`infra.triggers.serving.PostingThreads`)."""

    async def post(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> Posted | Kept:
        """Return the run, or what is kept until there is one; raise `HandoffError`."""

    async def retry(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> Posted:
        """Return the run of what is told again; raise `HandoffError` or `TimeoutError`."""

    def close(self) -> None:
        """End."""


class _Refused(Exception):
    """The request ends here, with this status; `why` is for the log alone."""

    def __init__(self, status: int, why: str = "") -> None:
        self.status = status
        self.why = why
        super().__init__(why)


@dataclass(frozen=True)
class _Answered:
    """The answer that an event had, and the number that its sender gave it."""

    answer: dict[str, object]
    delivery: str


@dataclass
class _Told:
    """What the log line says of a request."""

    source: str = "-"
    notes: list[str] = field(default_factory=list)


class Webhook:
    """Answers requests."""

    def __init__(
        self, sources: Sequence[Guarded], limits: Limits, posts: PostsArrivals, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Answer for `sources`; runs are posted by `posts`. Limits go by `clock`, in seconds."""
        self._sources = sources
        self._limits = limits
        self._posts = posts
        self._addresses = Buckets(limits.per_address_per_minute, clock)
        self._labels = Buckets(limits.per_source_per_minute, clock)
        self._all = Buckets(limits.overall_per_minute, clock)
        self._seen: Seen[_Answered] = Seen(clock)

    def application(self) -> Starlette:
        """Return the ASGI application."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self._posts.close)

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
        _log(request, error.status_code, _Told(), time.monotonic(), "-")
        return _json(error.status_code, {"error": _REFUSALS.get(error.status_code, "refused")})

    async def _fail(self, request: Request, error: Exception) -> JSONResponse:
        told = _Told(notes=[type(error).__name__])
        _log(request, 500, told, time.monotonic(), request.url.path[:20])
        return _json(500, {"error": _REFUSALS[500]})

    async def _answer(self, request: Request) -> JSONResponse:
        began, told = time.monotonic(), _Told()
        try:
            status, answer = await self._handle(request, told)
        except _Refused as refusal:
            status, answer = refusal.status, {"error": _REFUSALS[refusal.status]}
            if refusal.why:
                told.notes.append(refusal.why)
        _log(request, status, told, began, request.url.path)
        return _json(status, answer)

    async def _handle(self, request: Request, told: _Told) -> tuple[int, object]:
        address = request.client.host if request.client else ""
        if not self._addresses.take(address_group(address)):
            raise _Refused(429)
        body = await self._read_body(request)
        kind = next(kind for kind in ENDPOINTS if request.url.path == f"/{kind}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        trusted = [
            one for one in self._sources
            if one.source.kind == kind and fits(one, headers, body, time.time())
        ]  # fmt: skip
        if not trusted:
            raise _Refused(401)
        told.source = trusted[0].source.label
        seen, delivery = mark(kind, headers, body), headers.get(_REDELIVERED, "")[:100]
        known = self._seen.find(seen)
        # Whoever sends an event again under its own number asks for another try.
        is_retry = known is not None and bool(delivery) and known.delivery == delivery
        if known is not None and not is_retry:
            told.notes.append("seen before")
            return 200, known.answer
        if not self._labels.take(told.source) or not self._all.take():
            raise _Refused(429)
        post = self._posts.retry if is_retry else self._posts.post
        runs, kept = await self._post_all(trusted, headers, _parse(body), told, post)
        answer: dict[str, object] = {"runs": runs} if runs or kept else {"ignored": _IGNORED}
        if kept:
            answer["kept"] = kept
        self._seen.keep(seen, _Answered(answer, delivery))
        return (202 if runs or kept else 200), answer

    async def _read_body(self, request: Request) -> bytes:
        """Return the body of a JSON request, if it comes in time and isn't too large."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" or request.headers.get("content-encoding"):
            raise _Refused(415)
        most = self._limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and (len(length) > 12 or int(length) > most):
            raise _Refused(413)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_LIMIT_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > most:
                        raise _Refused(413)
        except TimeoutError:
            raise _Refused(408) from None
        except ClientDisconnect:
            raise _Refused(400, "the sender went away") from None
        return bytes(body)

    async def _post_all(
        self, trusted: Sequence[Guarded], headers: dict[str, str], payload: Any, told: _Told,  # noqa: ANN401 - JSON
        post: Callable[..., Awaitable[Posted | Kept]],
    ) -> tuple[list[dict[str, object]], list[str]]:  # fmt: skip
        """Return the runs that there are, and what is kept until there is one."""
        deadline = time.monotonic() + _POST_LIMIT_S
        runs: list[dict[str, object]] = []
        waiting = []
        for guarded in trusted:
            source = guarded.source
            try:
                for arrival in arrivals_of(source, headers, payload):
                    left = max(0.1, deadline - time.monotonic())
                    posted = await post(arrival, source.policy, limit_s=left)
                    told.source = source.label
                    if isinstance(posted, Kept):
                        told.notes.append(f"{arrival.label}: kept")
                        waiting.append(arrival.label)
                        continue
                    told.notes.append(f"{arrival.label}: {posted.name} {posted.state}")
                    runs.append({"name": posted.name, "id": str(posted.id), "new": posted.is_new})
            except NotUnderstood:
                raise _Refused(400) from None
            except UsageProblem as error:
                raise _Refused(422, str(error)) from None
            except TimeoutError:
                raise _Refused(503, "the Prefect server took too long") from None
            except NoRoom as error:
                raise _Refused(507, str(error)) from None
            except HandoffError as error:
                raise _Refused(503, str(error)) from None
        return runs, waiting


def _parse(body: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _Refused(400, "no JSON") from None


def _json(status: int, value: object) -> JSONResponse:
    # One request a connection: no idle one is left to hold.
    headers = {"Connection": "close", "Cache-Control": "no-store"}
    if status in (429, 503, 507):
        headers["Retry-After"] = "30"
    return JSONResponse(value, status, headers)


def _log(request: Request, status: int, told: _Told, began: float, path: str) -> None:
    """Write one line, in which nothing stands that an unverified sender chose."""
    address = request.client.host if request.client else "?"
    notes = "".join(c if c.isprintable() else "?" for c in "; ".join(told.notes))[:500]
    took_ms = (time.monotonic() - began) * 1e3
    level = logging.INFO if status < 400 else logging.WARNING
    LOGGER.log(
        level, "%s %s %d %s %.0f ms %s", address, path, status, told.source, took_ms, notes
    )  # fmt: skip
