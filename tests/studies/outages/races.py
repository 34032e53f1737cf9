"""Many at once: processes that release, and that promote, one model in one registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.errors import RegistryFailed
from handoff.tasks.registry.changes import PromoteRequest
from tests.studies.outages.children import ChildResult, run_in_child, start_child
from tests.studies.outages.inspecting import see_half, see_other_numbers, see_unsettled
from tests.studies.outages.litter import see_litter
from tests.studies.outages.outcomes import Outcome
from tests.studies.outages.registries import Delivery, Place, release, show

WRITERS = 8
PROMOTERS = 4
_KIND = "many at once"


def race(works: Sequence[Callable[[], object]]) -> list[ChildResult]:
    """Run each in a process of its own, all at once; return how they ended, in their order."""
    children = [start_child(work) for work in works]
    return [child.wait() for child in children]


def release_same(place: Place, *, rebuild: bool) -> Outcome:
    """Let eight release one delivery: one version, or with `rebuild` eight."""
    place.restore()

    def work() -> object:
        return release(place.registry, place.second, rebuild=rebuild).version

    versions = list(range(1, 2 + (WRITERS if rebuild else 1)))
    where = f"{WRITERS} releases of one delivery{', --rebuild' if rebuild else ''}"
    return _judge_race(place, where, race([work] * WRITERS), versions)


def release_others(place: Place, deliveries: Sequence[Delivery]) -> Outcome:
    """Let eight release a delivery each: eight versions."""
    place.restore()
    works = [lambda one=one: release(place.registry, one).version for one in deliveries]
    where = f"{len(deliveries)} releases of different deliveries"
    return _judge_race(place, where, race(works), list(range(1, 2 + len(deliveries))))


def some_deliveries(place: Place, root: Path, count: int = WRITERS) -> list[Delivery]:
    """Write deliveries that differ, below `root`."""
    root.mkdir()
    writing = replace(place.registry, root=root)
    made = []
    for number in range(count):
        manifest, folder = writing.write(f"2026-11-23T03:00:{number:02}+00:00", place.model)
        own = replace(manifest, fingerprint=manifest.digest)
        (folder / "manifest.json").write_bytes(own.to_bytes())
        made.append(Delivery(own, folder))
    return made


def promote_at_once(place: Place) -> Outcome:
    """Let four promote a version each over the same one: one wins, three are told by whom."""
    place.restore()

    def ready() -> None:
        for _ in range(PROMOTERS):
            release(place.registry, place.second, rebuild=True)

    run_in_child(ready)
    works = [
        lambda version=version: _promote(place, version) for version in range(2, 2 + PROMOTERS)
    ]
    ended = race(works)
    lost = []
    won = [one.value for one in ended if one.refusal is None]
    refusals = [str(one.refusal) for one in ended if isinstance(one.refusal, RegistryFailed)]
    if len(won) != 1 or len(refusals) != PROMOTERS - 1:
        lost.append(f"{len(won)} won and {len(refusals)} were told: {ended}")
    if not all("moved by another meanwhile" in text for text in refusals):
        lost.append(f"not told by whom: {refusals}")
    promoted = [e.version for e in place.registry.entries() if e.action == "promote"]
    if promoted != [1, *won]:
        lost.append(f"the history has the promotions {promoted}, and {won} won")
    found = run_in_child(lambda: _look(place)).value
    where = f"{PROMOTERS} promotions over one version"
    return Outcome(
        _KIND, where, "well", half=tuple(found[0]), lost=(*lost, *found[1]),
        litter=tuple(found[2]),
    )  # fmt: skip


def _promote(place: Place, version: int) -> int:
    request = PromoteRequest(place.model, version, "production")
    appended = place.registry.change(request, expected=1, is_conditional=True)
    show(place.registry.stores, model=place.model)
    return appended.version


def _judge_race(
    place: Place, where: str, ended: Sequence[ChildResult], versions: Sequence[int]
) -> Outcome:
    lost = [f"one was refused: {one.refusal}" for one in ended if one.refusal is not None]
    reported = {one.value for one in ended if one.refusal is None}
    if reported != {*versions[1:]}:
        lost.append(f"they were told the versions {sorted(reported)}, not {list(versions[1:])}")
    entries = place.registry.entries(place.model)
    made = [entry.version for entry in entries if entry.action == "release"]
    if sorted({*made}) != list(versions):
        lost.append(f"the ledger has the versions {made}, not {list(versions)}")
    found = run_in_child(lambda: _look(place)).value
    return Outcome(
        _KIND, where, "well", half=tuple(found[0]), lost=(*lost, *found[1]),
        litter=tuple(found[2]),
    )  # fmt: skip


def _look(place: Place) -> tuple[list[str], list[str], list[str]]:
    stores = place.registry.stores
    wrong = [*see_unsettled(stores, place.model), *see_other_numbers(stores, place.model)]
    return see_half(stores, place.model), wrong, see_litter(stores)
