"""Times calls in turns, and prints a ratio only where it is larger than the noise."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from handoff.artifacts.release.interval import Interval
from handoff.tasks.timing.benchmark import median_interval

# Threads that wait for more work spin for a while (OpenMP's, ONNX Runtime's) and would take the
# cores from whoever comes next.
_PAUSE_S = 0.005
_TURN_S = 0.002
_LEAST_ROUNDS = 11
# Cores that other processes may keep busy during a race that isn't repeated, and how often one is.
QUIET_CORES = 0.1
_REPEATS = 2


@dataclass(frozen=True)
class Ratio(Interval):
    """An interval that is printed as a ratio only where it doesn't hold 1."""

    @classmethod
    def of(cls, slow: Iterable[float], fast: Iterable[float]) -> Ratio:
        """Return how many times as long each round's `slow` took as its `fast`."""
        quotients = sorted(a / b for a, b in zip(slow, fast, strict=True))
        low, high = median_interval(len(quotients))
        return cls(statistics.median(quotients), quotients[low], quotients[high])

    @classmethod
    def across(cls, races: Iterable[Ratio]) -> Ratio:
        """Return the median of several races' ratios, with the interval that holds all of these.

        A process is faster or slower than another of the same program for as long as it lives, so
        that a race in new processes is one observation, however many calls it has (T. Kalibera and
        R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). The median of all races
        that could be held lies between the smallest and the largest of n with a probability of
        1 - 2 ** (1 - n): of six, 97 %.
        """
        values = [one.value for one in races]
        return cls(statistics.median(values), min(values), max(values))

    @property
    def is_significant(self) -> bool:
        """Whether the difference is larger than the noise."""
        return self.low > 1.0 or self.high < 1.0

    def __str__(self) -> str:
        if self.is_significant:
            return super().__str__()
        return f"no difference ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Race:
    """The seconds of each round by competitor, and what else the machine did meanwhile.

    `others` is the number of cores that other processes kept busy on average.
    """

    seconds: dict[str, list[float]]
    others: float

    def ratio(self, slow: str, fast: str) -> Ratio:
        """Return how many times as fast as `slow` the competitor `fast` is."""
        return Ratio.of(self.seconds[slow], self.seconds[fast])

    def median_s(self, name: str) -> float:
        """Return the median of a competitor's seconds for one call."""
        return statistics.median(self.seconds[name])


class TimedCall:
    """A call, and how often it is made in a turn."""

    def __init__(self, call: Callable[[], object]) -> None:
        """Call it three times: some runtimes still compile in their first calls."""
        self._call = call
        self._repeats = 0
        for _ in range(3):
            call()

    def turn(self) -> float:
        """Return the mean seconds of a call.

        It is called once untimed, so that its weights and its threads are where they are in a
        series of calls, and then as often as two milliseconds hold. That number is found in the
        first turn: before, others are still made on the same cores.
        """
        self._call()
        if not self._repeats:
            one = min(self._seconds(1) for _ in range(3))
            self._repeats = max(1, math.ceil(_TURN_S / one))
        return self._seconds(self._repeats) / self._repeats

    def _seconds(self, repeats: int) -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            self._call()
        return time.perf_counter() - began


def run_in_turns(
    turns: Mapping[str, Callable[[], float]], *, rounds: int, budget_s: float,
    least: int = _LEAST_ROUNDS,
) -> Race:  # fmt: skip
    """Let all take turns in `least` to `rounds` rounds, within `budget_s` if it can.

    A turn returns the seconds of a call. Who begins a round changes.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns)
    before, began = _busy(), time.perf_counter()
    while (done := len(seconds[order[0]])) < least or (
        done < rounds and time.perf_counter() - began < budget_s
    ):
        for name in order:
            time.sleep(_PAUSE_S)
            seconds[name].append(turns[name]())
        order.append(order.pop(0))
    all_s, own_s = (now - then for now, then in zip(_busy(), before, strict=True))
    return Race(seconds, max(0.0, all_s - own_s) / (time.perf_counter() - began))


def hold_quietly(hold: Callable[[], Race], races: int) -> list[Race]:
    """Hold so many races; return the quietest, as many.

    For each during which other processes kept more than a tenth of a core busy another one is held,
    and so a second time. What is left out is chosen by the noise alone, never by whoever was fast.
    """
    finished = [hold() for _ in range(races)]
    for _ in range(_REPEATS):
        noisy = sum(race.others > QUIET_CORES for race in finished)
        finished = sorted(
            [*finished, *(hold() for _ in range(noisy))], key=lambda race: race.others
        )
        finished = finished[:races]
    return finished


def _busy() -> tuple[float, float]:
    """Return the CPU seconds of the whole machine so far, and of this process and its children."""
    machine = psutil.cpu_times()
    total = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - machine.guest
    this = psutil.Process()
    own = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return total, sum(times.user + times.system for times in own)
