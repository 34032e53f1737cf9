"""The site: what a machine is for the flows that run on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.messages.registering import SigningKey, Stores


@dataclass(frozen=True)
class Site:
    """Where a machine builds, which stores it registers in, and the key that it signs with.

    It is the machine's own affair and never a flow's parameter: workers of one stack have other
    folders. `builds` is the folder of the builds, of which `workspace` is one that is open already
    (None: the flow opens its own). `recipes` holds a `MODEL.toml` for each model that has a recipe
    of its own. `compiler` is the C++ compiler, `by` who asks where a run doesn't say it.
    A machine that `is_worker` of a stack may have others do a part of the work. `has_server` says
    that a Prefect server keeps the runs, whose pages can be linked to.
    """

    builds: Path
    stores: Stores
    key: SigningKey
    compiler: str
    recipes: Path
    by: str
    workspace: Path | None = None
    is_worker: bool = False
    has_server: bool = False
