"""Conformance tables as they are kept: signed, stored, shown in MLflow, and read again."""

from __future__ import annotations

from collections import Counter

from handoff.artifacts.conformance.storage import (
    conformance_statement,
    keep_table,
    list_toolchains,
    read_table,
    shipped_table,
    shipped_tables,
)
from handoff.artifacts.conformance.table import (
    STANDINGS,
    Conformance,
    ConformanceRow,
    toolchain_digest,
)
from handoff.artifacts.errors import RegistryFailed, first_line
from handoff.artifacts.mlflow.description import add_column_gaps
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.printable import markdown_text
from handoff.artifacts.release.signing import open_signer, read_trust, sign_statement
from handoff.artifacts.stores.store import open_store
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.messages import (
    KeepTableJob,
    KeptTable,
    ReadTablesJob,
    SignedTable,
    SignTableJob,
    Tables,
)
from handoff.tasks.report.pictures import render_page


def sign_table(job: SignTableJob) -> SignedTable:
    """Return the envelope over the table's digest, toolchain and counts."""
    signer = open_signer(job.key.uri, job.key.public)
    return SignedTable(sign_statement(conformance_statement(job.table), signer).decode())


# What MLflow takes of a description (3.17, `MAX_TAG_VAL_LENGTH` is 8000).
_NOTE_LIMIT = 6000

_COLUMNS = ("operator", "dtype", "standing", "what shows it", "got", "expected", "public report")


def keep_signed_table(job: KeepTableJob) -> KeptTable:
    """Write the table and its signature, read them back as everybody does, and log it in MLflow.

    Raises `PackageRefused` for a signature that isn't trusted here, and `StoreFailed`. That MLflow
    can't be reached is noted in the result: the table is kept by then.
    """
    store = open_store(job.stores.objects)
    key = keep_table(store, job.table, job.envelope.encode())
    read_table(store, read_trust(job.stores.trusted, may_lack=True), job.table.digest)
    text = render_table(job.table)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "conformance.md").write_text(text, encoding="utf-8")
    (job.folder / "conformance.html").write_text(render_page(text, {}), encoding="utf-8")
    (job.folder / "conformance.json").write_bytes(job.table.to_bytes())
    note = add_column_gaps(text.removeprefix("# "))
    if len(note) > _NOTE_LIMIT:
        note = text.partition("\n\n|")[0].removeprefix("# ") + "\n\nSee `conformance.html`.\n"
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    try:
        address = catalogue.log_conformance(job.table, note, job.folder)
    except RegistryFailed as error:
        return KeptTable(key, not_shown=first_line(error))
    return KeptTable(key, address.link())


def render_table(table: Conformance) -> str:
    """Return the table in Markdown: the counts, then every pair that is wrong or crashes."""
    names = ", ".join(f"{name} {value}" for name, value in table.toolchain.items())
    counts = ", ".join(f"{table.counts[standing]} {standing}" for standing in STANDINGS)
    operators = len({row.operator for row in table.rows})
    parts = [
        f"# Conformance of {table.target}",
        markdown_text(names),
        f"{operators} operators, {len(table.rows)} with a dtype: {counts}"
        + (f"; {table.unasked} more not asked yet" if table.unasked else "")
        + f" (made {table.made[:10]} in {table.seconds / 60:.0f} min"
        + (f" on {markdown_text(table.machine)})." if table.machine else ")."),
    ]
    if faulty := [row for row in table.rows if row.standing in ("wrong", "crashes")]:
        lines = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_cells, faulty)]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    else:
        parts.append("No operator is known to be wrong.")
    if reasons := Counter(row.reason for row in table.rows if row.standing == "not compiled"):
        bullets = [f"- {count}: {markdown_text(reason)}" for reason, count in reasons.most_common()]
        parts.append("## Not compiled\n\n" + "\n".join(bullets))
    return "\n\n".join(parts) + "\n"


def _cells(row: ConformanceRow) -> tuple[str, ...]:
    showing = row.showing
    shown = (
        (f"{showing.question}: {showing.arguments}", showing.got, showing.want)
        if showing else (row.reason, "", "")
    )  # fmt: skip
    reports = ", ".join(
        f"[{number}](https://github.com/pytorch/pytorch/issues/{number})" for number in row.reports
    )
    return (
        *map(markdown_text, (row.operator, row.dtype, row.standing, *shown)),
        reports or "none known",
    )


def read_tables(job: ReadTablesJob) -> Tables:
    """Return both tables; None for one that isn't there.

    Raises `PackageRefused` for one that no trusted key has signed, and `StoreFailed`.
    """
    store = open_store(job.stores.objects)
    trust = read_trust(job.stores.trusted, may_lack=True)
    toolchain = conformance_toolchain(job.compiler, job.target, {})
    digest = toolchain_digest(toolchain)
    current = read_table(store, trust, digest)
    earlier: list[Conformance] = list(shipped_tables())
    for other in list_toolchains(store):
        if (table := read_table(store, trust, other)) is not None:
            earlier.append(table)
    same_target = [
        table for table in earlier
        if table.digest != digest
        and table.target == toolchain["target"]
        and table.toolchain["options"] == toolchain["options"]
    ]  # fmt: skip
    before = max(same_target, key=lambda table: table.made, default=None)
    return Tables(current or shipped_table(digest), before, is_kept=current is not None)
