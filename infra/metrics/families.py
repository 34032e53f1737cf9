"""The metrics by name, with what they count and their labels: the docs and the dashboard use these.

All are gauges: each is read off the Prefect server, the store or the home when it is asked for.
Names follow Prometheus' conventions (base units, `_timestamp_seconds` for moments since 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A metric: its name, what it counts and in which unit, and its labels."""

    name: str
    counts: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One figure of a metric, with a value for each of its labels."""

    family: Family
    labels: tuple[str, ...]
    value: float


SOURCE_UP = Family(
    "handoff_source_up", "1 if a source could be read at the last look, else 0", ("source",)
)
FLOW_RUNS = Family(
    "handoff_flow_runs", "Flow runs that the Prefect server keeps, by state", ("flow", "state")
)
QUEUED = Family("handoff_queued_runs", "Flow runs that are due and wait for a worker", ("pool",))
WORKERS = Family("handoff_workers_online", "Workers that are online", ("pool",))
NIGHT_MODELS = Family("handoff_night_models", "Models of the newest night", ("outcome",))
NIGHT_PACKAGES = Family(
    "handoff_night_packages",
    "Packages that the newest night built, by what of them came from the cache", ("reused",),
)  # fmt: skip
NIGHT_ENDED = Family("handoff_night_ended_timestamp_seconds", "When the newest night ended")
VERSIONS = Family("handoff_versions", "Versions whose packages are kept", ("model",))
ALIAS = Family("handoff_alias_version", "The version that an alias points to", ("model", "alias"))
LEDGER = Family(
    "handoff_ledger_newest_timestamp_seconds", "When a ledger's newest entry was signed", ("model",)
)
SPEEDUP = Family(
    "handoff_speedup", "Times as fast as eager when it was released", ("model", "alias", "target")
)
RMSE = Family(
    "handoff_rmse_ratio",
    "RMSE to float64 on ordinary inputs, in eager's own, when it was released",
    ("model", "alias", "target"),
)
STEP = Family(
    "handoff_step_seconds", "Median of a step's last five runs on this machine", ("model", "step")
)
DISK_FREE = Family("handoff_disk_free_bytes", "Free on the disk that holds it", ("folder",))
DISK_SIZE = Family("handoff_disk_size_bytes", "Size of the disk that holds it", ("folder",))
STORE_OBJECTS = Family("handoff_store_objects", "Objects in the store, counted once an hour")
STORE_BYTES = Family("handoff_store_bytes", "Their size, counted once an hour")
WAITING = Family("handoff_commits_waiting", "Commits that are kept until Prefect takes them")
SET_ASIDE = Family("handoff_commits_set_aside", "Commits that Prefect refused for good")

FAMILIES: Sequence[Family] = (
    SOURCE_UP, FLOW_RUNS, QUEUED, WORKERS, NIGHT_MODELS, NIGHT_PACKAGES, NIGHT_ENDED, VERSIONS,
    ALIAS, LEDGER, SPEEDUP, RMSE, STEP, DISK_FREE, DISK_SIZE, STORE_OBJECTS, STORE_BYTES, WAITING,
    SET_ASIDE,
)  # fmt: skip
