"""Posts arrivals in threads of its own, so that who waits for an answer can stop waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from handoff.infra.settings import Settings
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.posting import Posted, Poster, open_poster

_THREADS = 4


class PostingThreads:
    """A few threads with a client to Prefect's server each."""

    def __init__(self, settings: Settings) -> None:
        """Use the server of `settings`; nothing is asked yet."""
        self._settings = settings
        self._own = threading.local()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="post")

    async def post(self, arrival: Arrival, policy: Policy, *, limit_s: float) -> Posted:
        """Return the run for `arrival`; raise `TimeoutError` after `limit_s`.

        A post that is under way then ends behind, and the next one for the arrival finds its run.
        """
        future = self._threads.submit(self._post, arrival, policy)
        return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)

    def close(self) -> None:
        """Wait for what is under way, and close the clients."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def _post(self, arrival: Arrival, policy: Policy) -> Posted:
        poster: Poster | None = getattr(self._own, "poster", None)
        if poster is None:
            with self._lock:
                poster = self._stack.enter_context(open_poster(self._settings))
            self._own.poster = poster
        # A request that somebody kept and sends again, after a restart of ours, starts nothing.
        return poster.post(arrival, policy=policy, once=True)
