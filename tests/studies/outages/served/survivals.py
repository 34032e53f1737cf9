"""What came of one fault in a served stack, and the table of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Survival:
    """What came of a fault that befell a release or a night.

    `seen` is which states the runs went through, `well_s` the seconds from the fault until nothing
    was under way any more, `versions` how many there are of what one was to be made of, `twice`
    what was compiled again, `left` what was left lying about and `wrong` what else isn't as it
    should be.
    """

    fault: str
    when: str
    seen: str
    well_s: float
    versions: str
    twice: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def is_survived(self) -> bool:
        """Return whether all of it is as if there had been no fault."""
        return not (self.twice or self.left or self.wrong)

    def describe(self) -> str:
        """Return everything that was wrong."""
        return f"{self.fault}, {self.when}: {self.twice} {self.left} {self.wrong} ({self.seen})"


COLUMNS = (
    "fault", "in the middle of", "what was seen", "seconds until well", "versions of one delivery",
    "compiled twice", "left behind", "wrong",
)  # fmt: skip


def with_earlier_rows(rows: Sequence[str], before: Sequence[str]) -> list[str]:
    """Return a table's lines with those of an earlier one whose faults it doesn't have."""
    head, own = list(rows[:2]), list(rows[2:])
    faults = {row.split(" | ")[0] for row in own}
    earlier = [line for line in before if line.startswith("| ") and line not in head]
    return [*head, *(line for line in earlier if line.split(" | ")[0] not in faults), *own]


def survival_table(survivals: Sequence[Survival]) -> list[str]:
    """Return the lines of a Markdown table, one for each fault and what it befell."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|---:|---|---:|---:|---:|"]
    for one in survivals:
        counts = (str(len(found)) for found in (one.twice, one.left, one.wrong))
        cells = (one.fault, one.when, one.seen, f"{one.well_s:.0f}", one.versions, *counts)
        lines.append("| " + " | ".join(cells) + " |")
    return lines
