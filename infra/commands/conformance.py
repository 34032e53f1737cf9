"""What `handoff conformance` does: ask today's toolchain, print a table, compare two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.conformance.storage import list_toolchains, read_table, shipped_tables
from handoff.artifacts.conformance.table import (
    STANDINGS,
    Conformance,
    ConformanceRow,
    changed_rows,
    parse_conformance,
)
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.target import CpuTarget, parse_target
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.signing import read_trust
from handoff.artifacts.stores.store import open_store
from handoff.infra.cli.group import is_quiet
from handoff.infra.commands.release import require_compiler
from handoff.infra.prefect.flow_calls import call_flow
from handoff.infra.settings import Settings, compiler_name, read_settings, require_writable_home
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.output import echo
from handoff.tasks.conformance.known_faults import find_table
from handoff.tasks.conformance.script import repeating_script


def ask_toolchain(slug: str, operators: tuple[str, ...], *, again: bool, as_json: bool) -> None:
    """Print the table of today's toolchain for a target, made now where there is none."""
    target = _parse_cpu_target(slug)
    settings = read_settings()
    existing = None if again or operators else _find_current_table(settings, target)
    is_whole = existing is not None and not existing.unasked
    table = (
        existing
        if existing and is_whole
        else _build_table(settings, target, operators, again=again)
    )
    if as_json:
        print_json(to_plain(table))
        return
    _print_summary(table)
    _print_faults(table)


def _build_table(
    settings: Settings, target: CpuTarget, operators: tuple[str, ...], *, again: bool
) -> Conformance:
    require_compiler()
    require_writable_home(settings)

    def load() -> Callable[[], object]:
        from handoff.flows.conformance import conformance
        from handoff.flows.parameters import ConformanceParameters

        parameters = ConformanceParameters(
            target=target.slug, operators=list(operators), again=again
        )
        return lambda: conformance(parameters)

    with _log_to_stderr():
        table = from_plain(Conformance, call_flow(settings, None, load), "conformance")
    if operators and not table.rows:
        raise UsageProblem(
            "PyTorch's test suite has no such operator", expected="one of its names, such as amax",
            got=", ".join(operators), remedy="'handoff conformance --show' lists them all",
        )  # fmt: skip
    return table


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Print how far the run is, on standard error."""
    logger = logging.getLogger("handoff.conformance")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    if not is_quiet():
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show_conformance(slug: str, operator: str, *, as_json: bool) -> None:
    """Print what is known of today's toolchain: of all operators (`*`), or of one."""
    target = _parse_cpu_target(slug)
    table = _find_current_table(read_settings(), target)
    if table is None:
        raise UsageProblem(
            f"there is no conformance table of this toolchain for {target.slug}",
            expected="one in the store, or one that came with Handoff", got="none",
            remedy=f"Make it with 'handoff conformance --target {target.slug}'",
        )  # fmt: skip
    rows = table.rows if operator == "*" else table.rows_of_operator(operator)
    if not rows:
        raise UsageProblem(
            f"the table has no operator {operator[:80]}",
            expected="a name of PyTorch's test suite (amax) or of ATen (aten.amax)",
            got=operator[:80], remedy="'handoff conformance --show' lists what is wrong",
        )  # fmt: skip
    if as_json:
        print_json({"toolchain": table.toolchain, "rows": to_plain(rows)})
        return
    _print_summary(table)
    if operator == "*":
        _print_faults(table)
        return
    print_table("", ("operator", "dtype", "standing", "asked", ""), [_cells(row) for row in rows])
    for script in filter(None, (repeating_script(table, row) for row in rows)):
        # One is enough to go by; the others differ in their dtype.
        echo(script)
        break


def show_changes(before: str, after: str, *, as_json: bool) -> None:
    """Print what the toolchain of one table gets wrong that the other's doesn't, and back."""
    settings = read_settings()
    old, new = (_resolve_table(settings, name) for name in (before, after))
    changes = changed_rows(old, new)
    if as_json:
        print_json(
            {
                "before": old.toolchain, "after": new.toolchain,
                "changes": [
                    {"pair": a.pair, "before": a.standing, "after": b.standing}
                    for a, b in changes
                ],
            }
        )  # fmt: skip
        return
    if not changes:
        echo("Every operator stands as it stood")
        return
    cells = [(a.pair, a.standing, b.standing, _explain_row(b)) for a, b in changes]
    print_table("", ("operator and dtype", "before", "after", ""), cells)


def _parse_cpu_target(slug: str) -> CpuTarget:
    try:
        target = parse_target(slug)
    except ValueError as error:
        raise UsageProblem(
            "the target is none", expected="cpu, cpu-avx2 or another of a processor",
            got=slug[:60], remedy=str(error),
        ) from error  # fmt: skip
    if not isinstance(target, CpuTarget):
        raise UsageProblem(
            "operators are asked on a processor alone", expected="a target such as cpu-avx512",
            got=slug, remedy="Name one of a processor",
        )  # fmt: skip
    return target


def _find_current_table(settings: Settings, target: CpuTarget) -> Conformance | None:
    trust = read_trust(settings.stores.trusted, may_lack=True)
    return find_table(open_store(settings.stores.objects), trust, target, compiler_name(), {})


def _resolve_table(settings: Settings, name: str) -> Conformance:
    """Return the table that a file, a target or the first digits of a toolchain's digest name."""
    if Path(name).is_file():
        return parse_conformance(Path(name).read_bytes(), name)
    if name.startswith("cpu"):
        table = _find_current_table(settings, _parse_cpu_target(name))
        if table is not None:
            return table
    else:
        matches = [table for table in shipped_tables() if table.digest.hex.startswith(name)]
        store = open_store(settings.stores.objects)
        trust = read_trust(settings.stores.trusted, may_lack=True)
        digests = [digest for digest in list_toolchains(store) if digest.hex.startswith(name)]
        matches += [table for digest in digests if (table := read_table(store, trust, digest))]
        if len({table.digest for table in matches}) == 1:
            return matches[-1]
    raise UsageProblem(
        f"no conformance table is called {name[:80]}",
        expected="a target that was asked, the first digits of one toolchain, or a file",
        got=name[:80], remedy="'handoff conformance --show' tells a table's toolchain",
    )  # fmt: skip


def _print_summary(table: Conformance) -> None:
    operators = len({row.operator for row in table.rows})
    counts = ", ".join(f"{table.counts[standing]} {standing}" for standing in STANDINGS)
    echo(f"Toolchain {table.digest.short}: " + ", ".join(_toolchain(table)))
    if table.unasked:
        echo(
            f"Not whole: {table.unasked} more were not asked yet; "
            f"'handoff conformance --target {table.target}' goes on"
        )
    echo(
        f"{operators} operators, {len(table.rows)} with a dtype: {counts} "
        f"(made {table.made[:10]} in {table.seconds / 60:.0f} min)"
    )


def _toolchain(table: Conformance) -> Iterator[str]:
    names = table.toolchain
    yield f"torch {names['torch']}"
    yield f"triton {names['triton']}"
    yield names["compiler"]
    yield names["target"]
    if names["options"] != "{}":
        yield f"options {names['options']}"


def _print_faults(table: Conformance) -> None:
    faulty = [row for row in table.rows if row.standing in ("wrong", "crashes")]
    if faulty:
        columns = ("operator", "dtype", "standing", "asked", "")
        print_table("", columns, [_cells(row) for row in faulty])


def _cells(row: ConformanceRow) -> tuple[str, ...]:
    return row.operator, row.dtype, row.standing, str(row.asked or "-"), _explain_row(row)


def _explain_row(row: ConformanceRow) -> str:
    if row.showing is None:
        return row.reason[:90]
    text = f"{row.questions[0]}: got {row.showing.got}, expected {row.showing.want}"
    reports = f" (pytorch {', '.join(map(str, row.reports))})" if row.reports else ""
    return text + reports
