"""`handoff webhook`: serve the webhook, on loopback, behind TLS or behind a proxy that has it."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem
from handoff.artifacts.waiting import Backoff
from handoff.infra.settings import Settings, read_secret, read_settings
from handoff.infra.terminal.output import echo, log_lines
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.hooks import read_hooks
from handoff.infra.triggers.poster import PostedRun, Poster, open_poster
from handoff.infra.triggers.spool import Spool, SpooledArrival
from handoff.infra.triggers.webhook import ENDPOINTS, LOGGER, Webhook

_MOST_CONNECTIONS = 64
_MOST_OF_ONE_ADDRESS = 16
# Reading a body takes at most 10 s and posting 8 s.
_CONNECTION_LIMIT_S = 30.0
_MOST_HEADER_BYTES = 16384

_THREADS = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class BoundedConnection(H11Protocol):
    """A connection that doesn't outlive 30 s, of which no address has more than 16.

    uvicorn waits for the head of a request for ever (0.54: `timeout_keep_alive` begins after the
    first answer only), so that a sender of a byte a minute would hold a connection.
    """

    # Behind a proxy all connections come from it.
    most_of_one_address = _MOST_OF_ONE_ADDRESS
    limit_s = _CONNECTION_LIMIT_S
    _open: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count, and close what is too much."""
        super().connection_made(transport)
        self._address = (transport.get_extra_info("peername") or ("?",))[0]
        self._open[self._address] += 1
        self._end = asyncio.get_running_loop().call_later(self.limit_s, transport.abort)
        if self._open[self._address] > self.most_of_one_address:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count no more."""
        self._end.cancel()
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        super().connection_lost(exc)


def serve(
    config: Path, host: str, port: int, *, certificate: Path | None, key: Path | None,
    behind_proxy: str,
) -> None:  # fmt: skip
    """Answer until Ctrl-C or SIGTERM; raise `UsageProblem` for what isn't safe to listen on."""
    settings = read_settings()
    if settings.is_embedded:
        raise EnvironmentLacking(
            "the webhook posts to a Prefect server", expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    require_safe(host, certificate, behind_proxy)
    sources, limits = read_hooks(config, read_secret)
    application = Webhook(sources, limits, PostingThreads(settings)).application()
    options: dict[str, Any] = {}
    if certificate:
        _require_certificate(certificate, key)
        options = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key) if key else None}
    connection: type[BoundedConnection] = BoundedConnection
    if behind_proxy:
        connection = type(
            "ProxiedConnection", (BoundedConnection,), {"most_of_one_address": _MOST_CONNECTIONS}
        )
    scheme = "https" if certificate else "http"
    log_lines(LOGGER)
    with open_poster(settings):
        # Prefect's client takes seconds to import, and the first sender waits for 10.
        pass
    paths = ", ".join(f"/{kind}" for kind in ENDPOINTS)
    echo(f"listening on {scheme}://{host}:{port} ({paths}); every request is verified")
    uvicorn.run(
        application, host=host, port=port, http=connection, ws="none", lifespan="on",
        access_log=False, log_level="error", server_header=False, date_header=False,
        limit_concurrency=_MOST_CONNECTIONS, backlog=128, timeout_keep_alive=2,
        timeout_graceful_shutdown=10, h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        proxy_headers=bool(behind_proxy), forwarded_allow_ips=behind_proxy or None, **options,
    )  # fmt: skip


def require_safe(host: str, certificate: Path | None, behind_proxy: str) -> None:
    """Raise `UsageProblem` for an address that others reach, without TLS.

    Every request is authenticated, but GitLab's token and S3's are sent as they are, and whoever
    reads the line could send GitHub's requests again.
    """
    if certificate or behind_proxy or _is_loopback(host):
        return
    raise UsageProblem(
        "the webhook isn't shown to the network without TLS", expected="a loopback address, "
        "--certificate, or --behind-proxy with the proxy's address", got=host[:60],
        remedy="Let a reverse proxy with TLS hand requests on to 127.0.0.1, or name a "
        "certificate; tokens would be readable on the line else",
    )  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_certificate(certificate: Path, key: Path | None) -> None:
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageProblem(
            f"{certificate} can't be used", expected="a certificate in PEM, with its key",
            got=str(error)[:200], remedy="Fix --certificate and --key",
        ) from error  # fmt: skip


class PostingThreads:
    """A few threads with a client to Prefect's server each, and one that goes on.

    They post what was kept on disk first, so that who waits for an answer can stop waiting.
    """

    def __init__(self, settings: Settings) -> None:
        """Use the server of `settings`, and what its home has kept."""
        self._settings = settings
        self._spool = Spool(settings.home)
        self._ended, self._woken = threading.Event(), threading.Event()
        self._thread_local = threading.local()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="post")
        self._retry_thread = threading.Thread(target=self._retry_forever, name="spool")
        self._retry_thread.start()

    async def post(
        self, arrival: Arrival, policy: Policy, *, limit_s: float
    ) -> PostedRun | SpooledArrival:
        """Return the run for `arrival`, or that it is kept where there is none after `limit_s`.

        Raises what keeping it raises, and `UsageProblem` for what the server refuses.
        """
        entry = await asyncio.to_thread(self._spool.keep, arrival, policy)
        future = self._threads.submit(self._spool.deliver, self._post, entry)
        try:
            posted = await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except (TimeoutError, EnvironmentLacking):
            posted = None
        if posted is None:
            self._woken.set()
            return entry
        return posted

    async def retry(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> PostedRun:
        """Return the run for an arrival that is sent again on purpose.

        One that crashed or was cancelled is followed by another. Raises `HandoffError`, or
        `TimeoutError` after `limit_s`.
        """
        future = self._threads.submit(self._post, arrival, policy, once=False)
        return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)

    def close(self) -> None:
        """Wait for what is under way, and close the clients; what waits stays kept."""
        self._ended.set()
        self._woken.set()
        self._retry_thread.join()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def _retry_forever(self) -> None:
        """Post what waits, again and again; what keeps it from that is logged once."""
        last_error = ""
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._ended.is_set():
            try:
                self._spool.deliver(self._post)
            except HandoffError as error:
                if last_error != str(error):
                    LOGGER.warning("what was accepted is kept: %s", error)
                last_error = str(error)
            except OSError as error:
                LOGGER.warning("what was accepted can't be looked at: %s", error)
            else:
                last_error, pauses = "", Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._woken.wait(pauses.draw())
            self._woken.clear()

    def _post(self, arrival: Arrival, policy: Policy, *, once: bool = True) -> PostedRun:
        poster: Poster | None = getattr(self._thread_local, "poster", None)
        if poster is None:
            with self._lock:
                poster = self._stack.enter_context(open_poster(self._settings))
            self._thread_local.poster = poster
        # A request that somebody kept and sends again, after a restart of ours, starts nothing.
        return poster.post(arrival, policy=policy, once=once)
