"""Known wrong: what the toolchain's tables say of the operators of one graph."""

from __future__ import annotations

from handoff.artifacts.conformance.keeping import read_table, shipped_table
from handoff.artifacts.conformance.known_faults import KnownFault
from handoff.artifacts.conformance.table import Conformance, toolchain_digest
from handoff.artifacts.recipe.target import CpuTarget
from handoff.artifacts.release.signing import Trust, read_trust
from handoff.artifacts.stores.opening import open_store
from handoff.artifacts.stores.store import Store
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.known import known_faults, no_table
from handoff.tasks.conformance.messages import KnownWrong, KnownWrongJob


def run(job: KnownWrongJob) -> KnownWrong:
    """Return what is known to be wrong of the graph for any of the targets, and lacks of a table.

    A fault that several targets have is told of the first one.
    """
    store = open_store(job.stores.objects)
    trust = read_trust(job.stores.trusted, may_lack=True)
    faults: dict[tuple[str, ...], KnownFault] = {}
    lacking = []
    for target in job.targets:
        if not isinstance(target, CpuTarget):
            lacking.append(target.slug)
            continue
        table = find_table(store, trust, target, job.compiler, job.options)
        if table is None or table.unasked:
            lacking.append(target.slug)
        if table is not None:
            for fault in known_faults(table, job.calls):
                faults.setdefault(fault.calls, fault)
    notes = (no_table(lacking),) if lacking else ()
    return KnownWrong(tuple(faults.values()), notes)


def find_table(
    store: Store, trust: Trust, target: CpuTarget, compiler: str, options: dict[str, object]
) -> Conformance | None:
    """Return the table of today's toolchain: the store's, or the one that comes with the code.

    Where there is none for the options, that without options is returned; None without either.
    """
    for asked in (options, {}):
        digest = toolchain_digest(conformance_toolchain(compiler, target, asked))
        table = read_table(store, trust, digest) or shipped_table(digest)
        if table is not None:
            return table
    return None
