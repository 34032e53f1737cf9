"""The Prefect policy of steps, and of every flow, side by side.

No step is retried: each is deterministic and runs in a process of its own, so a second try would
end like the first. What can fail by chance (a store, a registry, where a delivery comes from)
retries inside its step, where it knows what is safe to repeat. Time limits are those of the steps'
rows (`tasks.steps`), kept by the step processes, which they end with everything they started;
Prefect's own don't interrupt a call that waits. Results are not cached by Prefect: its cache can't
tell that a file which a result names has changed. Steps have no tags: for each run of a tagged task
Prefect asks the server for a concurrency slot, limit or no limit, which took 2 s (3.8.8,
`acquire_concurrency_slots_with_lease`).
"""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE


def step(name: str) -> dict[str, Any]:
    """Return the policy of a step that is run once."""
    # Without a name of its own a task's run is shown with random characters.
    return {
        "name": name,
        "task_run_name": name,
        "cache_policy": NO_CACHE,
        "retries": 0,
        "persist_result": False,
    }


def target_step(name: str) -> dict[str, Any]:
    """Return the policy of a step that is run for each target, whose slug is in its run's name."""
    return {**step(name), "task_run_name": f"{name} {{slug}}"}


# No flow is retried by Prefect either: a run that crashed is repeated by the deployment `resume`,
# in a process of its own, and a refusal stays one. Seconds after which a run is given up are far
# beyond those of its steps together.
_FLOW: dict[str, Any] = {"retries": 0, "persist_result": False}

RELEASE = {
    **_FLOW,
    "name": "release",
    "flow_run_name": "release {parameters.label}",
    "timeout_seconds": 12 * 3600,
}
RECOMPILE = {
    **_FLOW,
    "name": "recompile",
    "flow_run_name": "recompile what {parameters.alias} serves",
    "timeout_seconds": 20 * 3600,
}
RECOMPILE_MODEL = {
    **_FLOW,
    "name": "recompile-model",
    "flow_run_name": "recompile {parameters.model}@{parameters.version}",
    "timeout_seconds": 12 * 3600,
}
PROMOTE = {
    **_FLOW,
    "name": "promote",
    "flow_run_name": "promote {parameters.label}",
    "timeout_seconds": 3600,
}
BUILD_TARGET = {
    **_FLOW,
    "name": "build-target",
    "flow_run_name": "build {parameters.label} for {parameters.target}",
    "timeout_seconds": 8 * 3600,
}
CONFORMANCE = {
    **_FLOW,
    "name": "conformance",
    "flow_run_name": "conformance of {parameters.target}",
    "timeout_seconds": 6 * 3600,
}
COLLECT_GARBAGE = {**_FLOW, "name": "collect-garbage", "timeout_seconds": 2 * 3600}
VERIFY_ON_TARGET = {
    **_FLOW,
    "name": "verify-on-target",
    "flow_run_name": "verify {parameters.label}",
    "timeout_seconds": 4 * 3600,
}
RESUME = {
    **_FLOW,
    "name": "resume",
    "flow_run_name": "resume {run}",
    "timeout_seconds": 300,
}

# Seconds that whoever waits for runs of others gives them.
WAITS_S = {
    # Of one target, on a machine that does other things beside.
    "conformance": 6 * 3600.0,
    # All models of a night, on as many workers as there are.
    "night": 18 * 3600.0,
    # A target's run waits for its machine, too.
    "elsewhere": 8 * 3600.0,
}
