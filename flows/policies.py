"""The Prefect policy of every step, side by side.

No step is retried: each is deterministic and runs in a process of its own, so a second try would
end like the first. What can fail by chance (a store, a registry) retries inside its step, where it
knows what is safe to repeat. Time limits are kept by the step processes, which they end with
everything they started; Prefect's own don't interrupt a call that waits. Results are not cached by
Prefect: its cache can't tell that a file which a result names has changed. Steps have no tags: for
each run of a tagged task Prefect asks the server for a concurrency slot, limit or no limit, which
took 2 s (3.8.8, `acquire_concurrency_slots_with_lease`).
"""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

from tasks.lanes import (
    COMPILE_LIMIT_S,
    INTAKE_LIMIT_S,
    OPTIMIZE_LIMIT_S,
    REFERENCE_LIMIT_S,
    TRACEABILITY_LIMIT_S,
)

_STEP: dict[str, Any] = {"cache_policy": NO_CACHE, "retries": 0, "persist_result": False}

RELEASE: dict[str, Any] = {
    "name": "release",
    "flow_run_name": "release {parameters.delivery.name}",
    "retries": 0,
    "persist_result": False,
}

TAKE_IN = {**_STEP, "name": "take in"}
INSPECT = {**_STEP, "name": "inspect"}
LOOK_UP = {**_STEP, "name": "look up"}
OPTIMIZE = {**_STEP, "name": "optimize"}
REFERENCE = {**_STEP, "name": "reference"}
COMPILE = {**_STEP, "name": "compile", "task_run_name": "compile {slug}"}
TAP = {**_STEP, "name": "tap", "task_run_name": "tap {slug}"}
LOCALIZE = {**_STEP, "name": "localize", "task_run_name": "localize {slug}"}
VERIFY = {**_STEP, "name": "verify", "task_run_name": "verify {slug}"}
PROBE = {**_STEP, "name": "probe", "task_run_name": "probe {slug}"}
BENCHMARK = {**_STEP, "name": "benchmark", "task_run_name": "benchmark {slug}"}
RACE = {**_STEP, "name": "race", "task_run_name": "race {slug}"}
OPEN_KEY = {**_STEP, "name": "open key"}
UPLOAD = {**_STEP, "name": "upload"}
APPEND = {**_STEP, "name": "sign and append"}
CATALOGUE = {**_STEP, "name": "catalogue"}

# Seconds after which a step's process is ended.
LIMITS_S = {
    "intake": INTAKE_LIMIT_S,
    "inspect": TRACEABILITY_LIMIT_S,
    "optimize": OPTIMIZE_LIMIT_S,
    "compile": COMPILE_LIMIT_S,
    "reference": REFERENCE_LIMIT_S,
    "tap": 3600.0,
    # Beyond its own budget, which it keeps to.
    "localize": 1800.0,
    "verify": 3600.0,
    "probe": 1800.0,
    "benchmark": 900.0,
    "race": 900.0,
    "look up": 600.0,
    "open key": 120.0,
    # Gigabytes, over a line of some megabytes a second.
    "upload": 7200.0,
    "catalogue": 3600.0,
}
