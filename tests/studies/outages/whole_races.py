"""Many commands at once, each a process tree of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from handoff.artifacts.release.releases import open_releases
from tests.studies.outages.children import run_in_child
from tests.studies.outages.inspecting import (
    kept_versions,
    see_half,
    see_other_numbers,
    see_unsettled,
)
from tests.studies.outages.litter import see_litter
from tests.studies.outages.outcomes import Outcome
from tests.studies.outages.releases import NAME, Workshop, wait_for_orphans

# Each takes some 2.5 GB of memory; eight at once are let loose on the steps (`races`).
WRITERS = 5
PROMOTERS = 4


def release_at_once(workshop: Workshop, *, rebuild: bool) -> Outcome:
    """Let some processes release one delivery: one version, or with `rebuild` as many."""
    workshop.restore()
    options = ("--rebuild",) if rebuild else ()
    command = ("release", str(workshop.root / "second"), *options)
    ended = _end_all([workshop.start(*command) for _ in range(WRITERS)])
    lost = [f"one ended with {code}: {output[-300:]}" for code, output in ended if code]
    last = 1 + (WRITERS if rebuild else 1)
    where = f"{WRITERS} whole releases of one delivery{', --rebuild' if rebuild else ''}"
    return _judge_race(workshop, where, lost, versions=list(range(1, last + 1)))


def promote_at_once(workshop: Workshop) -> Outcome:
    """Let four commands promote version 2 where version 1 has to stand: one wins, three end with 5.

    After the others' `release_at_once`: there are versions enough for a version each.
    """
    places = [f"{NAME}@{version}" for version in range(2, 2 + PROMOTERS)]
    options = ("--to", "production", "--from", "1", "--override", "--reason", "a race")
    ended = _end_all([workshop.start("promote", place, *options) for place in places])
    codes = sorted(code for code, _ in ended)
    lost = [] if codes == [0, 5, 5, 5] else [f"they ended with {codes}: {ended}"]
    lost += [
        f"not told by whom: {output[-300:]}"
        for code, output in ended
        if code and "moved by another meanwhile" not in output
    ]
    releases = open_releases(workshop.stores.objects, workshop.stores.trusted, None)
    promoted = [entry for entry in releases.entries(NAME) if entry.action == "promote"]
    if len(promoted) != 2:
        lost.append(f"the history has {len(promoted)} promotions, not 2")
    versions = list(range(1, 2 + WRITERS))
    return _judge_race(workshop, f"{PROMOTERS} commands promote over one version", lost, versions)


def _end_all(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    ended = []
    for process in processes:
        _, output = process.communicate(timeout=1800)
        ended.append((process.returncode, output))
    return ended


def _judge_race(workshop: Workshop, where: str, lost: list[str], versions: list[int]) -> Outcome:
    def look() -> tuple[list[str], list[str], list[str]]:
        stores = workshop.stores
        releases = open_releases(stores.objects, stores.trusted, None)
        kept = sorted(kept_versions(releases.entries(NAME)))
        wrong = [] if kept == versions else [f"the ledger has the versions {kept}, not {versions}"]
        wrong += see_other_numbers(stores, NAME)
        litter = see_litter(stores, home=workshop.home, scratch=[workshop.scratch])
        return see_half(stores, NAME), [*wrong, *see_unsettled(stores, NAME)], litter

    litter = wait_for_orphans(workshop)
    half, unsettled, left = run_in_child(look).value
    return Outcome(
        "many at once", where, "well", half=tuple(half), lost=(*lost, *unsettled),
        litter=(*litter, *left),
    )  # fmt: skip
