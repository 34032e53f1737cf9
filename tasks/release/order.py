"""The order of a release's steps, once: what tells of a release before or beside it reads it here.

The flow (`flows.releasing`) runs them as each has what it needs; a test holds it to this order.
"""

from __future__ import annotations

from collections.abc import Iterable

from handoff.tasks import steps

# On the delivery, which every target shares.
SHARED = (steps.TAKE_IN, steps.INSPECT, steps.OPTIMIZE, steps.REFERENCE)
# Of these the next waits for the one before, and the targets run beside each other.
OF_TARGET = (steps.COMPILE, steps.VERIFY, steps.PROBE, steps.MEASURE, steps.BENCHMARK)
REGISTERING = (steps.UPLOAD, steps.SIGN, steps.CATALOGUE)


def names_in_order(slugs: Iterable[str]) -> list[str]:
    """Return the steps' names, as they are announced, of a release for the targets `slugs`."""
    of_targets = [f"{row.name} {slug}" for slug in slugs for row in OF_TARGET]
    shared, last = ([row.name for row in rows] for rows in (SHARED, REGISTERING))
    return [*shared, *of_targets, *last]
