"""The Prefect policy of every step, side by side.

No step is retried: each is deterministic and runs in a process of its own, so a second try would
end like the first. What can fail by chance (a store, a registry, where a delivery comes from)
retries inside its step, where it knows what is safe to repeat. Time limits are kept by the step
processes, which they end with everything they started; Prefect's own don't interrupt a call that
waits. Results are not cached by Prefect: its cache can't tell that a file which a result names has
changed. Steps have no tags: for each run of a tagged task Prefect asks the server for a
concurrency slot, limit or no limit, which took 2 s (3.8.8, `acquire_concurrency_slots_with_lease`).
"""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

from handoff.tasks.release.processes import (
    COMPILE_LIMIT_S,
    FETCH_LIMIT_S,
    INTAKE_LIMIT_S,
    OPTIMIZE_LIMIT_S,
    REFERENCE_LIMIT_S,
    TRACEABILITY_LIMIT_S,
)


def _step(name: str) -> dict[str, Any]:
    # Without a name of its own a task's run is shown with random characters.
    return {
        "name": name,
        "task_run_name": name,
        "cache_policy": NO_CACHE,
        "retries": 0,
        "persist_result": False,
    }


def _target_step(name: str) -> dict[str, Any]:
    return {**_step(name), "task_run_name": f"{name} {{slug}}"}


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

FETCH = _step("fetch")
TAKE_IN = _step("take in")
INSPECT = _step("inspect")
LOOK_UP = _step("look up")
CAPTURE = _step("capture")
OPTIMIZE = _step("optimize")
REFERENCE = _step("reference")
COMPILE = _target_step("compile")
TAP = _target_step("tap")
LOCALIZE = _target_step("localize")
VERIFY = _target_step("verify")
PROBE = _target_step("probe")
MEASURE = _target_step("measure")
BENCHMARK = _target_step("benchmark")
RACE = _target_step("race")
OPEN_KEY = _step("open key")
UPLOAD = _step("upload")
APPEND = _step("sign and append")
CATALOGUE = _step("catalogue")
MOVE = _step("move alias")
SURVEY = _step("survey")
RECORDS = _step("records")
NOTE_ROWS = _step("note rows")
READ_ROWS = _step("read rows")
SHOW_NIGHT = _step("show night")
PULL = _step("pull")
THREE_WAY = _target_step("compare")
SEND = _step("send")
RECEIVE = _step("receive")
COLLECT = _step("collect")
RESTORE = _step("restore")
REPEAT = _step("repeat comparison")
CONFORM = _step("conform")
SIGN_TABLE = _step("sign table")
KEEP_TABLE = _step("keep table")
KNOWN_WRONG = _step("known wrong")
READ_TABLES = _target_step("read tables")

# Seconds after which a step's process is ended.
LIMITS_S = {
    "fetch": FETCH_LIMIT_S,
    "intake": INTAKE_LIMIT_S,
    "inspect": TRACEABILITY_LIMIT_S,
    "optimize": OPTIMIZE_LIMIT_S,
    "compile": COMPILE_LIMIT_S,
    "reference": REFERENCE_LIMIT_S,
    "tap": 3600.0,
    # Beyond its own budget, which it keeps to.
    "localize": 5400.0,
    "verify": 3600.0,
    "probe": 1800.0,
    "measure": 600.0,
    "benchmark": 900.0,
    "race": 900.0,
    "look up": 600.0,
    "open key": 120.0,
    # Gigabytes, over a line of some megabytes a second.
    "upload": 7200.0,
    "catalogue": 3600.0,
    "collect": 3600.0,
    "survey": 3600.0,
    "records": 600.0,
    "table": 600.0,
    # Of one target, on a machine that does other things beside.
    "conformance": 6 * 3600.0,
    "rows": 600.0,
    "show night": 1800.0,
    # All models of a night, on as many workers as there are.
    "night": 18 * 3600.0,
    "pull": 7200.0,
    "restore": 7200.0,
    "three ways": 1800.0,
    "send": 7200.0,
    "receive": 7200.0,
    # A target's run waits for its machine, too.
    "elsewhere": 8 * 3600.0,
}
