"""Survey: which of the models that are served would be made of something else today.

It reads ledgers and records alone: a model that nothing has changed about costs some requests to
the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from handoff.artifacts.errors import HandoffError, StoreFailed
from handoff.artifacts.nightly.night import NightRow, read_nights
from handoff.artifacts.recipe.recipe import Recipe, read_recipe
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.compile.toolchain import changes_since, toolchain_today
from handoff.tasks.nightly.messages import Survey, Surveyed, SurveyJob

# What was found out in one of these isn't found out again.
_LAST_NIGHTS = 30
_Settled = dict[tuple[str, int | None, str], NightRow]


def run(job: SurveyJob) -> Survey:
    """Return what has changed since each model's served version was made.

    A ledger that can't be read is its own model's problem, and is told there.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    settled = {} if job.models else _settled(releases)
    models = job.models or releases.models()
    looked = tuple(one for model in models for one in _look(releases, job, model, settled))
    return Survey(looked, toolchain_today(job.compiler))


def _look(releases: Releases, job: SurveyJob, model: str, settled: _Settled) -> Iterator[Surveyed]:
    """Give what there is to say of one model; nothing for one that the alias doesn't serve."""
    try:
        held = releases.require_head(model).entry.aliases.get(job.alias)
        if held is None:
            if job.models:
                yield Surveyed(model, 0, Recipe(), problem=f"it has no alias {job.alias}")
            return
        release = releases.read(model, held)
        manifest = release.manifest
        # The recipe that the machine has for the model, else the one it was made by.
        path = job.recipes / f"{manifest.model}.toml"
        recipe = read_recipe(path) if path.exists() else manifest.recipe
        today = fingerprint_release(manifest.delivery, recipe, job.compiler)
        if today == manifest.fingerprint:
            yield Surveyed(model, held.version, recipe, why="nothing has changed")
            return
        found = Surveyed(model, held.version, recipe, today=str(today))
        before = settled.get((model, held.version, str(today)))
        if before and before.outcome == "kept":
            told = f"version {before.new}, made by today's toolchain, is kept back: {before.why}"
            yield replace(found, why=told, kept_back=before.new)
            return
        yield replace(
            found,
            changed=changes_since(manifest, manifest.delivery, recipe, job.compiler),
            refused=before.why if before else "",
            problem="" if release.claim.delivery else "its delivery was not kept with it",
        )
    except (HandoffError, ValueError) as error:
        # What one model's ledger or recipe has must not stop the night of the others.
        yield Surveyed(model, 0, Recipe(), problem=str(error))


def _settled(releases: Releases) -> _Settled:
    """Return what the last nights have kept back or refused, by model, version and fingerprint.

    Where a record can't be read, all is compared again.
    """
    try:
        nights = read_nights(releases.store, _LAST_NIGHTS)
    except StoreFailed:
        return {}
    return {
        (row.model, row.old, row.made_from): row
        for night in nights
        for row in night.rows
        if row.outcome in ("kept", "refused") and row.made_from
    }
