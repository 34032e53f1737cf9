"""The nightly recompile: every model that is served, rebuilt by today's toolchain and recipe.

survey -> the toolchain's operators, where nobody has asked them yet
       -+-> unchanged, which is said and costs nothing
        '-> one run a model: restore -> release -> compare three ways -> promote, or keep -> its row
-> the night's summary
"""

from __future__ import annotations

from typing import Any, cast

from prefect import flow
from prefect.runtime import flow_run

from handoff.artifacts.errors import NightFailed
from handoff.artifacts.nightly.night import ALARMING
from handoff.artifacts.record import to_plain
from handoff.flows import policies
from handoff.flows.nightly.night import NightWork, night_stamp, rebuild_models, sum_up, tell_night
from handoff.flows.nightly.night_conformance import conform_tonight
from handoff.flows.nightly.rebuilding import rebuild
from handoff.flows.parameters import EVERYTHING, Attempt, RebuildParameters, RecompileParameters
from handoff.flows.site import here
from handoff.flows.steps import note_rows, survey
from handoff.tasks.nightly.messages import NoteRowsJob, SurveyJob
from handoff.tasks.registry.moving import opened_registrar


@flow(**policies.RECOMPILE_MODEL)
def recompile_model(parameters: RebuildParameters, attempt: Attempt = 1) -> dict[str, Any]:
    """Rebuild one model and compare it with what is served; return its row of the night.

    The row is in the store before this ends, whatever comes of it, but for a crash. Raises what the
    release or the comparison raised.
    """
    site = here()
    row, error = rebuild(site, parameters)
    with opened_registrar(site) as (registrar, _):
        note_rows(registrar, NoteRowsJob(site.stores, parameters.night, (row,)))
    if error is not None:
        raise error
    return cast(dict[str, Any], to_plain(row))


@flow(**policies.RECOMPILE)
def recompile(parameters: RecompileParameters = EVERYTHING, attempt: Attempt = 1) -> dict[str, Any]:
    """Rebuild what an alias serves; return the night's record.

    A model that fails stops no other; `NightFailed` is raised at the end where any did. A night
    that is begun again after a crash goes on where it was.
    """
    site = here()
    stamp = night_stamp(flow_run.id or "")
    looking = SurveyJob(
        site.stores, parameters.alias, site.recipes, site.compiler, tuple(parameters.models)
    )
    with opened_registrar(site) as (registrar, scratch):
        surveyed = survey(registrar, looking)
        work = NightWork(site, registrar, parameters, stamp)
        # First: which operators the toolchain gets wrong belongs into the records that follow.
        asked = surveyed.models if parameters.conformance else ()
        operators = conform_tonight(site, registrar, asked, stamp)
        rows = rebuild_models(work, surveyed.models, recompile_model)
        night = sum_up(stamp, surveyed, parameters.alias, rows, operators)
        tell_night(work, scratch / "night", night)
    if night.exit_status:
        bad = [f"{row.model}: {row.outcome}, {row.why}" for row in rows if row.outcome in ALARMING]
        raise NightFailed(
            f"{len(bad)} of {len(rows)} models could not be rebuilt",
            expected="every model replaced, kept or unchanged", got="; ".join(bad)[:2000],
            remedy="What serves them stays as it was. Look at their runs; the next night tries "
            "again",
        )  # fmt: skip
    return cast(dict[str, Any], to_plain(night))
