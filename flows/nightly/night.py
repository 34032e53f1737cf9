"""A night's choreography: who asks the toolchain, who rebuilds which model, what is reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger

from handoff.artifacts.conformance.table import Conformance, describe_changes
from handoff.artifacts.errors import HandoffError, first_line
from handoff.artifacts.host import HostSettings
from handoff.artifacts.night import Night, NightRow, Outcome
from handoff.artifacts.recipe.target import CpuTarget, host_cpu_flags
from handoff.artifacts.record import to_plain
from handoff.flows import policies
from handoff.flows.children import (
    MOST_ATTEMPTS,
    ChildRun,
    find_deployment,
    read_deployment,
    start,
    start_all,
    wait_for,
)
from handoff.flows.conformance import make_conformance
from handoff.flows.names import CONFORMANCE, RECOMPILE_MODEL
from handoff.flows.pages import mlflow_page, own_page, page_of
from handoff.flows.parameters import RebuildParameters, RecompileParameters
from handoff.flows.steps import note_rows, read_rows, read_tables, show_night
from handoff.infra.engine.child import StepProcess
from handoff.tasks.conformance.messages import ReadTablesJob, Tables
from handoff.tasks.nightly.messages import (
    ModelSurvey,
    NoteRowsJob,
    ReadRowsJob,
    ShowNightJob,
    Survey,
)


def conform_tonight(
    host: HostSettings, registrar: StepProcess, surveyed: Iterable[ModelSurvey], stamp: str
) -> tuple[str, ...]:
    """Return what today's toolchain breaks and fixes of the one before, in sentences.

    A table that is missing for a target of the night's models is made, by a worker where there is
    a stack. One that is there costs a look into the store. What can't be made stops no night: it is
    reported.
    """
    targets = {
        target: None for one in surveyed for target in one.recipe.resolved_targets()
        if isinstance(target, CpuTarget) and target.cpu_flags <= host_cpu_flags()
    }  # fmt: skip
    sentences: list[str] = []
    for target in targets:
        try:
            sentences += _conform_target(host, registrar, target, stamp)
        except HandoffError as error:
            sentences.append(
                f"{target.slug}: its operators could not be asked: {first_line(error)}"
            )
    return tuple(sentences)


def _conform_target(
    host: HostSettings, registrar: StepProcess, target: CpuTarget, stamp: str
) -> tuple[str, ...]:
    tables = _read_tables(host, registrar, target)
    # One that comes with the code is signed and shown once, too, which asks nothing again.
    if tables.today is None or tables.today.unasked or not tables.is_kept:
        table = _make_table(host, registrar, target, stamp)
        if table is None:
            return (f"{target.slug}: no worker has asked its operators",)
        tables = Tables(table, tables.before)
    if tables.today is None or tables.before is None:
        return ()
    return describe_changes(tables.before, tables.today)


def _read_tables(host: HostSettings, registrar: StepProcess, target: CpuTarget) -> Tables:
    return read_tables(
        registrar, ReadTablesJob(host.stores, host.compiler, target, time.time()), target.slug
    )


def _make_table(
    host: HostSettings, registrar: StepProcess, target: CpuTarget, stamp: str
) -> Conformance | None:
    """Return the table that is made now, here or by a worker; None where none of them has."""
    if not host.is_worker:
        return make_conformance(host, target)
    with get_client(sync_client=True) as client:
        deployment = find_deployment(client, CONFORMANCE)
        if deployment is None:
            return None
        parameters = {"parameters": {"target": target.slug}}
        key = f"conformance:{stamp}:{target.slug}"
        run = start(
            client,
            ChildRun(
                deployment, key, parameters, (f"night:{stamp}",), f"conformance of {target.slug}"
            ),
        )
    wait_for([run], policies.WAITS_S["conformance"])
    return _read_tables(host, registrar, target).today


_STAMP = "%Y%m%dT%H%M%SZ"
_LOGGER = logging.getLogger("handoff.night")
# Rebuilds a model; the number says how often that was tried.
Rebuild = Callable[[RebuildParameters, int], Any]


def night_stamp(run: str) -> str:
    """Return the stamp of the night that the flow run `run` works on.

    It is when the first run for it was to begin: one that takes a crashed one's place continues
    with the same night.
    """
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(UUID(run))
        while (flow_run.idempotency_key or "").startswith("resume:"):
            flow_run = client.read_flow_run(UUID((flow_run.idempotency_key or "").split(":")[1]))
    began = flow_run.expected_start_time or flow_run.created or datetime.now(UTC)
    return began.astimezone(UTC).strftime(_STAMP)


@dataclass(frozen=True)
class NightWork:
    """A night under way: where, through which process to the stores, what is wanted, since when."""

    host: HostSettings
    registrar: StepProcess
    parameters: RecompileParameters
    stamp: str

    def note(self, rows: Iterable[NightRow]) -> None:
        """Keep the rows of models that have none yet."""
        if noted := tuple(rows):
            note_rows(self.registrar, NoteRowsJob(self.host.stores, self.stamp, noted))

    def rows(self) -> dict[str, NightRow]:
        """Return the rows that are there so far, by their models."""
        job = ReadRowsJob(self.host.stores, self.stamp, time.time())
        result = read_rows(self.registrar, job)
        return {row.model: row for row in result.rows}


def rebuild_models(
    work: NightWork, surveyed: Iterable[ModelSurvey], rebuild: Rebuild
) -> tuple[NightRow, ...]:
    """Return every model's row: those that are due are rebuilt, here or by the stack's workers.

    Those that have a row of this night already, since an earlier run crashed, are left as they are.
    """
    known = work.rows()
    remaining = [one for one in surveyed if one.model not in known]
    work.note(_row_without_rebuild(one) for one in remaining if not one.is_due)
    due = [_rebuild_parameters(work, one) for one in remaining if one.is_due]
    ends = (
        _rebuild_by_workers(work, due) if work.host.is_worker else _rebuild_one_by_one(due, rebuild)
    )
    rows = work.rows()
    # Their runs ended without a word: killed, or never begun.
    silent = {
        one.model: NightRow(one.model, "crashed", one.version, why=end.why, run=end.run)
        for one in due
        if one.model not in rows
        for end in [ends.get(one.model, _RunEnd())]
    }
    work.note(silent.values())
    rows |= silent
    return tuple(rows[model] for model in sorted(rows))


def _row_without_rebuild(one: ModelSurvey) -> NightRow:
    """Return the row of a model for which nothing is to be done."""
    outcome: Outcome = "failed" if one.problem else "refused" if one.refused else "unchanged"
    why = one.problem or one.refused or one.why
    old, new = one.version or None, one.kept_back
    return NightRow(one.model, outcome, old, new, why=why, made_from=one.today)


def _rebuild_parameters(work: NightWork, one: ModelSurvey) -> RebuildParameters:
    return RebuildParameters(
        model=one.model,
        version=one.version,
        alias=work.parameters.alias,
        night=work.stamp,
        recipe=to_plain(one.recipe),
        changed=list(one.changed),
        made_from=one.today,
    )


@dataclass(frozen=True)
class _RunEnd:
    """How a model's run ended, and the run's page."""

    why: str = "it ended without a word"
    run: str = ""


def _rebuild_by_workers(work: NightWork, due: list[RebuildParameters]) -> Mapping[str, _RunEnd]:
    """Have workers rebuild the models, many at once; return how their runs ended."""
    with get_client(sync_client=True) as client:
        deployment = read_deployment(client, RECOMPILE_MODEL)
        children = [
            ChildRun(
                deployment,
                f"recompile:{work.stamp}:{parameters.model}",
                {"parameters": parameters.model_dump(mode="json")},
                (f"model:{parameters.model}", f"night:{work.stamp}"),
                # It is named so from the start, and not when a worker takes it up.
                f"recompile {parameters.model}@{parameters.version}",
            )
            for parameters in due
        ]
        started = start_all(client, children)
    run_by_model = {parameters.model: run for parameters, run in zip(due, started, strict=True)}
    ended = wait_for(run_by_model.values(), policies.WAITS_S["night"])
    ends = {}
    for model, run in run_by_model.items():
        last = ended[run.id]
        why = f"{last.state.name}: {last.state.message}" if last.state else "no state"
        ends[model] = _RunEnd(why, page_of(work.host, last.id))
    return ends


def _rebuild_one_by_one(due: list[RebuildParameters], rebuild: Rebuild) -> Mapping[str, _RunEnd]:
    """Rebuild the models in this process; return what ended those that failed."""
    return {
        parameters.model: _RunEnd(why)
        for parameters in due
        if (why := _rebuild_here(parameters, rebuild))
    }


def _rebuild_here(parameters: RebuildParameters, rebuild: Rebuild) -> str:
    """Rebuild a model; return what ended it early, "" where nothing did.

    What is no refusal (a server or a disk that fails, say) is a crash, and tried again as often as
    workers' runs are.
    """
    why = ""
    for attempt in range(1, MOST_ATTEMPTS + 1):
        try:
            rebuild(parameters, attempt)
        except HandoffError as refusal:
            return f"{type(refusal).__name__}: {refusal}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            _LOGGER.exception("%s crashed, attempt %d", parameters.model, attempt)
        else:
            return ""
    return why


def report_night(work: NightWork, folder: Path, night: Night) -> None:
    """Keep the night's record and show it: in the log, in Prefect's report, in MLflow."""
    job = ShowNightJob(work.host.stores, night, folder, own_page(work.host))
    shown = show_night(work.registrar, job)
    get_run_logger().info("%s", shown.table)
    page = mlflow_page(work.host.stores.tracking_uri, shown.place)
    markdown = (
        f"{shown.markdown}\n[In MLflow]({page}): the trends, too.\n" if page else shown.markdown
    )
    create_markdown_artifact(key="nightly", markdown=markdown, description=shown.headline)


def summarise_night(
    stamp: str,
    survey: Survey,
    alias: str,
    rows: tuple[NightRow, ...],
    conformance: tuple[str, ...] = (),
) -> Night:
    """Return the night's record, which ends now."""
    started = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
    ended = datetime.now(UTC)
    return Night(
        date=started.date().isoformat(),
        started=started.isoformat(),
        ended=ended.isoformat(timespec="seconds"),
        toolchain=survey.toolchain,
        rows=rows,
        alias=alias,
        conformance=conformance,
    )
