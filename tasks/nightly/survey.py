"""Survey: which of the models that are served would be made of something else today.

It reads ledgers and records alone: a model that nothing has changed about costs some requests to
the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from handoff.artifacts.errors import HandoffError, StoreFailed
from handoff.artifacts.night import LOST, Night, NightRow, read_nights
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.compile.toolchain import changes_since, toolchain_today
from handoff.tasks.nightly.messages import ModelSurvey, Survey, SurveyJob

# What was found out in one of these isn't found out again.
_LAST_NIGHTS = 30
_Decisions = dict[tuple[str, int | None, str], NightRow]


def run(job: SurveyJob) -> Survey:
    """Return what has changed since each model's served version was made.

    A ledger that can't be read is its own model's problem, and is reported there; so is that a
    model which the last nights have seen served isn't there any more. Raises `StoreUnreachable`
    for a store that has none of the ledgers which this machine has seen in it: their nights'
    records are gone with them, and it would be a quiet night.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    releases.require_ledgers()
    nights = () if job.models else _last_nights(releases)
    decisions = _past_decisions(nights)
    models = job.models or releases.models()
    surveyed = [one for model in models for one in _survey_model(releases, job, model, decisions)]
    surveyed += _lost_models(
        nights, job.alias, {one.model for one in surveyed}, releases.store.location
    )
    return Survey(tuple(surveyed), toolchain_today(job.compiler))


def _survey_model(
    releases: Releases, job: SurveyJob, model: str, decisions: _Decisions
) -> Iterator[ModelSurvey]:
    """Give what there is to say of one model; nothing for one that the alias doesn't serve."""
    try:
        pointer = releases.require_head(model).entry.aliases.get(job.alias)
        if pointer is None:
            if job.models:
                yield ModelSurvey(model, 0, Recipe(), problem=f"it has no alias {job.alias}")
            return
        release = releases.read(model, pointer)
        manifest = release.manifest
        # The recipe that the machine has for the model, else the one it was made by.
        path = job.recipes / f"{manifest.model}.toml"
        recipe = read_recipe(path) if path.exists() else manifest.recipe
        today = fingerprint_release(manifest.delivery, recipe, job.compiler)
        if today == manifest.fingerprint:
            yield ModelSurvey(model, pointer.version, recipe, why="nothing has changed")
            return
        survey = ModelSurvey(model, pointer.version, recipe, today=str(today))
        decision = decisions.get((model, pointer.version, str(today)))
        if decision and decision.outcome == "kept":
            why = f"version {decision.new}, made by today's toolchain, is kept back: {decision.why}"
            yield replace(survey, why=why, kept_back=decision.new)
            return
        yield replace(
            survey,
            changed=changes_since(manifest, manifest.delivery, recipe, job.compiler),
            refused=decision.why if decision else "",
            problem="" if release.claim.delivery else "its delivery was not kept with it",
        )
    except (HandoffError, ValueError) as error:
        # What one model's ledger or recipe has must not stop the night of the others.
        yield ModelSurvey(model, 0, Recipe(), problem=str(error))


def _last_nights(releases: Releases) -> tuple[Night, ...]:
    """Return the records of the last nights, oldest first; none where one can't be read."""
    try:
        return read_nights(releases.store, _LAST_NIGHTS)
    except StoreFailed:
        return ()


def _lost_models(
    nights: tuple[Night, ...], alias: str, surveyed: set[str], store: str
) -> Iterator[ModelSurvey]:
    """Give the models that were served when a night last looked, and aren't there any more.

    It is reported once: the row of the night that does so is the newest then, and serves nothing.
    """
    newest = {row.model: (night, row) for night in nights for row in night.rows
              if night.alias == alias}  # fmt: skip
    for model, (night, row) in newest.items():
        if row.served_version is not None and model not in surveyed:
            problem = (
                f"version {row.served_version} was served in the night of {night.date}, and "
                f"{LOST}{store} any more: look whether that is the right store, and "
                "whether somebody has removed it there"
            )
            yield ModelSurvey(model, 0, Recipe(), problem=problem)


def _past_decisions(nights: tuple[Night, ...]) -> _Decisions:
    """Return what the last nights have kept back or refused, by model, version and fingerprint."""
    return {
        (row.model, row.old, row.made_from): row
        for night in nights
        for row in night.rows
        if row.outcome in ("kept", "refused") and row.made_from
    }
