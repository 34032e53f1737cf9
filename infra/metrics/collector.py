"""A collector for Prometheus' client: looks at each source, at most every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.printable import one_line
from handoff.infra.metrics.families import FAMILIES, SOURCE_UP, Sample

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

LOGGER = logging.getLogger("handoff.metrics")

Source = Callable[[], Iterable[Sample]]


class MetricsCollector:
    """The figures of several sources, as a collector of `prometheus_client`.

    Each answer is of one look; another one within `fresh_s` seconds is given the same figures, so
    that many who ask cost no more than one. A source that can't be read has no figures, rather than
    old ones, and `handoff_source_up` 0.
    """

    def __init__(
        self, sources: Mapping[str, Source], fresh_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._sources, self._fresh_s, self._clock = sources, fresh_s, clock
        self._samples: list[Sample] = []
        self._read_at: float | None = None
        self._down: set[str] = set()
        self._lock = threading.Lock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give every metric that has figures."""
        from prometheus_client.core import GaugeMetricFamily

        samples = self.samples()
        for family in FAMILIES:
            matching = [sample for sample in samples if sample.family == family]
            if matching:
                gauge = GaugeMetricFamily(family.name, family.counts, labels=family.labels)
                for sample in matching:
                    gauge.add_metric([one_line(label) for label in sample.labels], sample.value)
                yield gauge

    def samples(self) -> list[Sample]:
        """Return the figures of a look that is no older than `fresh_s`."""
        with self._lock:
            now = self._clock()
            if self._read_at is None or now - self._read_at >= self._fresh_s:
                self._samples = [
                    sample
                    for name, read in self._sources.items()
                    for sample in self._read_source(name, read)
                ]
                self._read_at = self._clock()
            return self._samples

    def _read_source(self, name: str, read: Source) -> list[Sample]:
        try:
            samples = list(read())
        except (HandoffError, OSError) as error:
            if name not in self._down:
                LOGGER.warning("no figures from the %s: %s", name, one_line(str(error)))
            self._down.add(name)
            return [Sample(SOURCE_UP, (name,), 0)]
        if name in self._down:
            LOGGER.warning("figures from the %s again", name)
        self._down.discard(name)
        return [Sample(SOURCE_UP, (name,), 1), *samples]
