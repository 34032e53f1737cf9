"""What a release makes of the reports, judged as it judges, and the tables of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.studies.faults.cases import Judge, Judgement, Report
from tests.studies.faults.reports.neighbours import NEIGHBOURS
from tests.studies.faults.reports.public import PUBLIC

REPORTS = (*PUBLIC, *NEIGHBOURS)


@dataclass(frozen=True)
class ReportRow:
    """A report, what happened to its delivery, and whether that is what must.

    `localizes` says whether the wrong operator was looked for.
    """

    report: Report
    judged: Judgement
    localizes: bool = True

    @property
    def good(self) -> bool:
        """Return whether it was refused by its numbers, with the operator, or released, as it must.

        A wrong one that is refused before it was compared was not seen.
        """
        if self.report.must == "released":
            return not self.judged.refused
        operator = self.judged.operator
        named = not self.localizes or (operator != "" and operator.startswith(self.report.operator))
        return self.judged.refused and not self.judged.before and named


def judge_reports(
    chosen: Iterable[Report], folder: Path, *, localizes: bool = True
) -> list[ReportRow]:
    """Deliver and judge each; print each as it is known.

    With `localizes`, the wrong operator of each refused one is looked for, which takes minutes.
    """
    judge, rows = Judge(folder, localizes=localizes), []
    try:
        for report in chosen:
            row = ReportRow(report, judge.judge(report), localizes)
            mark = "as it must" if row.good else f"NOT {report.must}"
            line = f"{mark}: {report.name}: {row.judged.summary} {row.judged.operator}"
            print(f"{line} ({row.judged.seconds:.0f} s)", file=sys.stderr, flush=True)
            rows.append(row)
    finally:
        judge.close()
    return rows


def reports_table(rows: Iterable[ReportRow]) -> list[str]:
    """Return what happened to the reports, as Markdown."""
    lines = [
        "| pattern | report | must be | asked by | became | operator named |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        report, judged = row.report, row.judged
        issue = str(report.issue) if report.issue else "none found"
        became = judged.summary if row.good else f"**{judged.summary}**"
        lines.append(
            f"| {report.name} | {issue} | {report.must} | {report.question} | {became} "
            f"| {judged.operator} |"
        )
    return lines


def brief_table(rows: Iterable[ReportRow]) -> list[str]:
    """Return for a page of the documents what happened to each pattern, and what saw it."""
    lines = ["| report | pattern | became | seen by |", "|---|---|---|---|"]
    for row in rows:
        report, judged = row.report, row.judged
        address = f"https://github.com/pytorch/pytorch/issues/{report.issue}"
        issue = f"[{report.issue}]({address})" if report.issue else "none found"
        if not judged.refused:
            became = "released: right within what is declared"
            became = became if report.must == "released" else "**released**"
            lines.append(f"| {issue} | {report.name} | {became} | |")
            continue
        case = judged.result.reasons[0].partition(",")[0]
        became = "refused" if row.good else f"**{judged.summary}**"
        lines.append(f"| {issue} | {report.name} | {became} | {report.question}: `{case}` |")
    return lines
