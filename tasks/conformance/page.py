"""A toolchain's table as people read it in MLflow: what is wrong, and what could not be asked."""

from __future__ import annotations

from collections import Counter

from handoff.artifacts.conformance.table import STANDINGS, Conformance, Row
from handoff.artifacts.printable import markdown_text

_COLUMNS = ("operator", "dtype", "standing", "what shows it", "got", "expected", "public report")


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
        told = [f"- {count}: {markdown_text(reason)}" for reason, count in reasons.most_common()]
        parts.append("## Not compiled\n\n" + "\n".join(told))
    return "\n\n".join(parts) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
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
