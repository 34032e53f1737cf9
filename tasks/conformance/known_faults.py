"""What a toolchain's table knows to be wrong about the operators of a graph; without torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from handoff.artifacts.conformance.storage import read_table, shipped_table
from handoff.artifacts.conformance.table import (
    Conformance,
    ConformanceRow,
    KnownFault,
    PlainTensor,
    toolchain_digest,
)
from handoff.artifacts.recipe.target import CpuTarget
from handoff.artifacts.release.evidence import Finding
from handoff.artifacts.release.signing import Trust, read_trust
from handoff.artifacts.stores.store import Store, open_store
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.messages import KnownWrong, KnownWrongJob

_SHOWN_VALUES = 6

# What a graph does beside computing: such calls prove nothing about another graph.
_BYSTANDERS = (
    "aten._assert_scalar", "aten.sym_size", "aten._assert_async", "aten._assert_tensor_metadata",
    "aten.alias",
)  # fmt: skip


def find_known_faults(table: Conformance, calls: Collection[str]) -> tuple[KnownFault, ...]:
    """Return what the table knows to be wrong, or to crash, of a graph that makes these calls.

    `calls` are the graph's operators with the dtypes of their tensors, as
    `tasks.conformance.lookup.calls_of` gives them. A row concerns the graph where it calls all
    that the row's smallest wrong graph calls: a fault of several operators counts where all of
    them come together. An operator's overloads count as one where their tensors are of the same
    dtypes: what is wrong with a tensor beside it is so with a number. Rows of the same calls are
    reported together, by the first one's values.
    """
    present = set(map(kind_of, calls))
    by_calls: dict[tuple[str, ...], list[ConformanceRow]] = {}
    for row in table.rows:
        if row.standing not in ("wrong", "crashes"):
            continue
        needed = tuple(
            call for call in (row.showing.calls if row.showing else row.calls)
            if not call.startswith(_BYSTANDERS)
        )  # fmt: skip
        if needed and present.issuperset(map(kind_of, needed)):
            by_calls.setdefault(needed, []).append(row)
    return tuple(_make_known_fault(table, calls, rows) for calls, rows in by_calls.items())


def kind_of(call: str) -> tuple[str, frozenset[str]]:
    """Return an operator without its overload, and the dtypes of its tensors.

    What an overload with a mode computes is something else: `div.Tensor_mode` rounds.
    """
    name, _, kinds = call.removesuffix(")").partition("(")
    operator = ".".join(name.split(".")[:2])
    mode = "_mode" if name.endswith("_mode") else ""
    return operator + mode, frozenset(kinds.split(", "))


def _make_known_fault(
    table: Conformance, calls: tuple[str, ...], rows: list[ConformanceRow]
) -> KnownFault:
    first = rows[0]
    names = ", ".join(dict.fromkeys(row.pair for row in rows))
    how = "wrong" if first.standing == "wrong" else "crashing"
    description = f"{' with '.join(calls)} is known to be {how} in packages for "
    description += f"{table.target} by torch {table.toolchain['torch']} (conformance: {names})"
    if showing := first.showing:
        description += f": {showing.question}, {showing.arguments}"
        if showing.inputs:
            description += f", such as {'; '.join(map(format_tensor, showing.inputs))}"
        description += f": got {showing.got}, expected {showing.want}"
    if reports := sorted({number for row in rows for number in row.reports}):
        description += f" (pytorch {', '.join(map(str, reports))})"
    return KnownFault(calls, first.operator, description, showing.inputs if showing else ())


def fault_findings(known: KnownWrong, asked: Mapping[str, str]) -> tuple[Finding, ...]:
    """Return the notes on all that is known; `asked` is as for `fault_finding`."""
    return (*known.notes, *(fault_finding(fault, asked) for fault in known.faults))


def preliminary_findings(known: KnownWrong) -> tuple[Finding, ...]:
    """Return the notes on what is known before any package was compared."""
    remedy = (
        "A release compares the package on such values if declared inputs lead them there, and "
        "refuses it if it is wrong on them"
    )
    return (*known.notes, *(_make_note(fault, remedy) for fault in known.faults))


def fault_finding(fault: KnownFault, asked: Mapping[str, str]) -> Finding:
    """Return the note on a fault: whether, and as which case, the graph was asked for it.

    `asked` has the cases by the faults' names.
    """
    if case := asked.get(fault.name):
        remedy = (
            f"The package was compared on such values ('{case}'), and is refused if it is wrong "
            "on them"
        )
    else:
        remedy = (
            "This model isn't affected, as far as was found: no input within the declared ranges "
            "leads such values to it"
        )
    return _make_note(fault, remedy)


def _make_note(fault: KnownFault, remedy: str) -> Finding:
    script = f"'handoff conformance --show {fault.operator}' prints the script that repeats it"
    return Finding("known-wrong-operator", "note", fault.description, f"{remedy}. {script}")


def format_tensor(tensor: PlainTensor) -> str:
    """Return a tensor in a few words: its dtype, shape and first values."""
    values = ", ".join(f"{value:g}" for value in tensor.values[:_SHOWN_VALUES])
    dots = ", ..." if len(tensor.values) > _SHOWN_VALUES else ""
    return f"{tensor.dtype}{list(tensor.shape)} [{values}{dots}]"


def missing_table_finding(targets: Collection[str]) -> Finding:
    """Return the note that nothing is known of this toolchain's operators for some targets."""
    return Finding(
        "no-conformance-table", "note",
        f"there is no whole conformance table of this toolchain for {', '.join(targets)}: which "
        "operators it gets wrong isn't known of all",
        "Make it with 'handoff conformance'",
    )  # fmt: skip


def known_wrong(job: KnownWrongJob) -> KnownWrong:
    """Return what is known to be wrong of the graph for any of the targets, and lacks of a table.

    A fault that several targets have is reported for the first one.
    """
    store = open_store(job.stores.objects)
    trust = read_trust(job.stores.trusted, may_lack=True)
    faults: dict[tuple[str, ...], KnownFault] = {}
    missing = []
    for target in job.targets:
        if not isinstance(target, CpuTarget):
            missing.append(target.slug)
            continue
        table = find_table(store, trust, target, job.compiler, job.options)
        if table is None or table.unasked:
            missing.append(target.slug)
        if table is not None:
            for fault in find_known_faults(table, job.calls):
                faults.setdefault(fault.calls, fault)
    notes = (missing_table_finding(missing),) if missing else ()
    return KnownWrong(tuple(faults.values()), notes)


def find_table(
    store: Store, trust: Trust, target: CpuTarget, compiler: str, options: dict[str, object]
) -> Conformance | None:
    """Return the table of today's toolchain: the store's, or the one that comes with the code.

    Where there is none for the options, that without options is returned; None without either.
    """
    for candidate in (options, {}):
        digest = toolchain_digest(conformance_toolchain(compiler, target, candidate))
        table = read_table(store, trust, digest) or shipped_table(digest)
        if table is not None:
            return table
    return None
