"""A toolchain in MLflow: one run for each target's table, with what it gets wrong."""

from __future__ import annotations

from datetime import datetime

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.mlflow.own_runs import OwnRun

TOOLCHAIN_TAG = "handoff.toolchain"


def run_of_table(table: Conformance, note: str) -> OwnRun:
    """Return the run that shows the table; `note` is its description in Markdown."""
    ended = int(datetime.fromisoformat(table.made).timestamp() * 1000)
    counts = {standing.replace(" ", "_"): float(n) for standing, n in table.counts.items()}
    metrics = {
        **counts, "unasked": float(table.unasked), "seconds": table.seconds,
        "operators": float(len({row.operator for row in table.rows})),
    }  # fmt: skip
    names = table.toolchain
    return OwnRun(
        TOOLCHAIN_TAG, table.digest.hex, f"{table.target}, torch {names['torch']}", note,
        ended - round(table.seconds * 1000), ended, metrics,
        tags={f"handoff.{name}": value for name, value in names.items()},
    )  # fmt: skip
