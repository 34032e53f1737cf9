"""What came of one injected fault, and the tables of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from handoff.artifacts.errors import HandoffError
from tests.studies.outages.inspecting import kept_versions, see_half, see_unsettled
from tests.studies.outages.litter import for_collector, see_litter
from tests.studies.outages.registries import Place

Ending = Literal["well", "refused", "killed"]


@dataclass(frozen=True)
class Outcome:
    """What came of one fault: how the run ended, and what was wrong then and after the next run.

    `message` is the refusal. `half` is what readers could see half, `lost` and `unsettled` what the
    second run did not make up for, `litter` what was left after it. `for_collector` is what only
    a garbage collection gives up.
    """

    kind: str
    where: str
    ended: Ending
    message: str = ""
    half: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    litter: tuple[str, ...] = ()
    for_collector: int = 0

    @property
    def is_survived(self) -> bool:
        """Return whether nothing was half, lost or left."""
        return not (self.half or self.lost or self.litter)

    def describe(self) -> str:
        """Return everything that was wrong, for an assertion."""
        return f"{self.kind}, {self.where}: {self.half} {self.lost} {self.litter} ({self.message})"


@dataclass
class InspectionResult:
    """What inspections found, before the second run and after it."""

    half: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    litter: list[str] = field(default_factory=list)
    for_collector: int = 0


def judge(
    place: Place, run_again: Callable[[], object], versions: Sequence[int]
) -> InspectionResult:
    """Inspect the registry, run again, and inspect it once more: it has `versions` by then."""
    stores = place.registry.stores
    found = InspectionResult(half=see_half(stores, place.model))
    try:
        run_again()
    except HandoffError as error:
        found.lost.append(f"the second run was refused: {error}")
    found.half += see_half(stores, place.model)
    found.lost += [*see_unsettled(stores, place.model), *see_lost(place, versions)]
    found.litter += see_litter(stores)
    found.for_collector = for_collector(stores)
    return found


def see_lost(place: Place, versions: Sequence[int]) -> list[str]:
    """Return where the ledger doesn't have `versions`, the newest of them as candidate."""
    entries = place.registry.entries(place.model)
    kept = sorted(kept_versions(entries))
    if kept != list(versions):
        return [f"the ledger has the versions {kept}, not {list(versions)}"]
    aliases = {alias: pointer.version for alias, pointer in entries[-1].aliases.items()}
    if aliases.get("candidate") != versions[-1]:
        return [f"candidate is not version {versions[-1]} but {aliases.get('candidate')}"]
    if "production" in aliases and aliases["production"] != 1:
        return [f"production is not version 1 but {aliases['production']}"]
    return []


COLUMNS = (
    "fault", "where", "injected", "ended well at once", "refused, then well", "killed, then well",
    "half-visible", "lost", "litter left", "for the collector",
)  # fmt: skip


def outcome_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines of a Markdown table: a row for each kind of fault and place."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.kind, outcome.where), []).append(outcome)
    lines += [_row(kind, where, group) for (kind, where), group in groups.items()]
    lines.append(_row("**all**", "", list(outcomes)))
    return lines


def _row(kind: str, where: str, group: Sequence[Outcome]) -> str:
    good = [outcome for outcome in group if outcome.is_survived]
    cells = [kind, where, str(len(group))]
    cells += [str(sum(o.ended == ending for o in good)) for ending in ("well", "refused", "killed")]
    cells += [
        str(sum(bool(getattr(outcome, name)) for outcome in group))
        for name in ("half", "lost", "litter")
    ]
    cells.append(str(sum(outcome.for_collector for outcome in group)))
    return "| " + " | ".join(cells) + " |"
