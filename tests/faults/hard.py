"""Hard but right models: each has to be released, and its report to say what was not compared."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.cases import Case, Judge, Judged


@dataclass(frozen=True, kw_only=True)
class Hard(Case):
    """A right model: what makes it hard to judge, the verdict in words, what it waits for.

    `waits` says why it couldn't be released when this was written; '' for nothing.
    """

    why: str
    verdict: str = "released, all elements compared"
    waits: str = ""


HARD: tuple[Hard, ...] = ()


def judge_hard(chosen: Iterable[Hard], folder: Path) -> list[Judged]:
    """Deliver and judge each; tell of each as it is known."""
    judge, rows = Judge(folder, localizes=False), []
    try:
        for case in chosen:
            judged = judge.judge(case)
            told = f"{case.name}: {judged.told} ({judged.seconds:.0f} s)"
            print(told, file=sys.stderr, flush=True)
            rows.append(judged)
    finally:
        judge.close()
    return rows


def hard_table(rows: Iterable[Judged]) -> list[str]:
    """Return what became of the hard models, as Markdown."""
    lines = ["| model | hard because | must be | became |", "|---|---|---|---|"]
    for row in rows:
        case = row.case
        assert isinstance(case, Hard)
        became = f"**{row.told}**" if row.refused else row.told
        lines.append(f"| {case.name} | {case.why} | {case.verdict} | {became} |")
    return lines
