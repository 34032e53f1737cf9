"""A package that is called for so many seconds: whether there is time for another call."""

from __future__ import annotations

import time
from collections.abc import Callable

from handoff.tasks.probe.call_patterns import Package
from handoff.tasks.verify.loading import Tensors


class TimeLimitedPackage:
    """Calls a package, and says before a call whether the seconds that are left will do for it.

    What a call takes is extrapolated from the last one by the bytes of the inputs, so that they
    should come in the order of these. The first isn't asked about: it may wait for a start.
    """

    def __init__(
        self, package: Package, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Hold the package, and how long all calls may take by a clock, in seconds."""
        self._package, self._left_s, self._clock = package, seconds, clock
        self._calls, self._seconds_per_byte = 0, 0.0

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the outputs, flattened, of any shapes; raises what the package raises."""
        began = self._clock()
        try:
            return self._package(inputs)
        finally:
            took_s = self._clock() - began
            self._left_s -= took_s
            self._seconds_per_byte = took_s / bytes_of(inputs) if self._calls else 0.0
            self._calls += 1

    def has_time_for(self, inputs: Tensors) -> bool:
        """Return whether a call with these inputs would end in time; the first one always does."""
        expected_s = self._seconds_per_byte * bytes_of(inputs)
        return not self._calls or 0 < self._left_s >= expected_s


def bytes_of(inputs: Tensors) -> int:
    """Return how many bytes inputs of any shapes and dtypes have, at least one."""
    return max(1, sum(tensor.numel() * tensor.element_size() for tensor in inputs))
