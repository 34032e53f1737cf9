"""What flows, deployments, work pools and tags are called on a Prefect server."""

from __future__ import annotations

# The tag of every run, and the name of every deployment that isn't a target's.
TAG = "handoff"
# The tag of the runs that `resume` starts again after a crash.
RESUME_TAG = "handoff-resume"

CONTROL_POOL = "handoff-control"
BUILD_POOL = "handoff-build"


def deployment_name(flow: str, name: str = TAG) -> str:
    """Return the full name of a flow's deployment, `flow/name`."""
    return f"{flow}/{name}"


def target_pool(slug: str) -> str:
    """Return the pool of the machines that have a target's hardware."""
    return f"handoff-{slug}"


RELEASE = deployment_name("release")
RECOMPILE = deployment_name("recompile")
RECOMPILE_MODEL = deployment_name("recompile-model")
CONFORMANCE = deployment_name("conformance")
RESUME = deployment_name("resume")
