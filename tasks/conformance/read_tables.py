"""Read tables: today's toolchain's conformance table for a target, and the one before it."""

from __future__ import annotations

from handoff.artifacts.conformance.keeping import (
    kept_toolchains,
    read_table,
    shipped_table,
    shipped_tables,
)
from handoff.artifacts.conformance.table import Conformance, toolchain_digest
from handoff.artifacts.release.signing import read_trust
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.messages import ReadTablesJob, Tables


def run(job: ReadTablesJob) -> Tables:
    """Return both tables; None for one that isn't there.

    Raises `PackageRefused` for one that no trusted key has signed, and `StoreFailed`.
    """
    store = open_store(job.stores.objects)
    trust = read_trust(job.stores.trusted, may_lack=True)
    wanted = conformance_toolchain(job.compiler, job.target, {})
    digest = toolchain_digest(wanted)
    own = read_table(store, trust, digest)
    earlier: list[Conformance] = list(shipped_tables())
    for kept in kept_toolchains(store):
        if (table := read_table(store, trust, kept)) is not None:
            earlier.append(table)
    alike = [
        table for table in earlier
        if table.digest != digest
        and (table.target, table.toolchain["options"]) == (wanted["target"], wanted["options"])
    ]  # fmt: skip
    before = max(alike, key=lambda table: table.made, default=None)
    return Tables(own or shipped_table(digest), before, is_kept=own is not None)
