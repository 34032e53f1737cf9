"""How much a store holds, which takes a listing of it: once an hour, and beside what is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.stores.store import Store
from handoff.infra.metrics import families
from handoff.infra.metrics.families import Sample

# A listing of a thousand objects is one request, which S3 charges for.
_VALID_S = 3600.0
_PATIENCE_S = 5.0


class StoreUse:
    """The objects and bytes of a store, as a source of figures.

    A listing of a large store takes longer than a look may: it goes on in a thread, and there are
    no figures until the first one is through. One that failed is begun again with the next look,
    which raises `HandoffError` or `OSError` as it did.
    """

    def __init__(
        self, open_store: Callable[[], Store], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open, self._clock = open_store, clock
        self._usage: tuple[int, int] | None = None
        self._listed_at = 0.0
        self._error: HandoffError | OSError | None = None
        self._thread: threading.Thread | None = None

    def samples(self) -> Iterator[Sample]:
        """Give the figures of the newest listing; begin another where that is an hour old."""
        if self._thread is None and self._is_old():
            self._thread = threading.Thread(target=self._list, daemon=True, name="store-use")
            self._thread.start()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S if self._usage is None else 0.0)
            if not self._thread.is_alive():
                self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._usage is not None:
            objects, size = self._usage
            yield Sample(families.STORE_OBJECTS, (), objects)
            yield Sample(families.STORE_BYTES, (), size)

    def _is_old(self) -> bool:
        return self._usage is None or self._clock() - self._listed_at >= _VALID_S

    def _list(self) -> None:
        objects = size = 0
        try:
            for stored in self._open().keys(""):
                objects, size = objects + 1, size + stored.size_bytes
        except (HandoffError, OSError) as error:
            self._error = error
            return
        self._listed_at, self._usage = self._clock(), (objects, size)
