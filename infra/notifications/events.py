"""What has happened since the last look at the Prefect server, and what is said of it.

A look misses nothing that happened while this process, the server or its events were away, which
automations do (a server that was restarted holds events back): what was reported is remembered by
run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import (
    ERRORS,
    BlessingRefused,
    BuildCrashed,
    DeliveryUnreadable,
    DeliveryUnsound,
    HandoffError,
    NotShownYet,
    UsageProblem,
)
from handoff.artifacts.night import ALARMING, Night, NightRow
from handoff.artifacts.printable import one_line
from handoff.flows.names import RECOMPILE, RELEASE
from handoff.infra.notifications.forge import CommitStatus, State, shorten
from handoff.infra.notifications.outbox import Memory, Message, PendingStatus, enqueue
from handoff.infra.prefect.absences import read_absences
from handoff.infra.prefect.pools import online_workers
from handoff.infra.prefect.prefect_api import explain_prefect_errors
from handoff.infra.triggers.spool import RejectedArrival

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


_ENCOUNTERED = re.compile(r"^Flow run encountered an exception:? *")
_ERROR = re.compile(r"^(" + "|".join(ERRORS) + r"): (.*)$", re.DOTALL)
# What the delivery itself is refused for; all else is the machine's, or a server's.
_REFUSALS = (BlessingRefused, DeliveryUnreadable, DeliveryUnsound, UsageProblem)
_LONGEST_SENTENCE = 600
_LONGEST_ROW = 300
_MOST_ROWS = 10


@dataclass(frozen=True)
class Notice:
    """What is said of an end: for a status its state, for a message its title."""

    state: State
    text: str
    title: str = ""


def release_notice(label: str, state: str, message: str, released: str) -> Notice:
    """Return what is said of a release that ended in `state`, as Prefect names its types.

    `message` is the state's, and `released` what its report is headed with, if it has one.
    """
    if state == "COMPLETED":
        return Notice("success", released.replace("*", "") or "Released; it was made before.")
    kind, sentence = read_sentence(message)
    error = ERRORS.get(kind)
    if state == "CANCELLED":
        return Notice("error", f"Cancelled: {sentence}" if sentence else "Cancelled.")
    if error is NotShownYet:
        # The ledger has it, and MLflow shows it later.
        return Notice("success", sentence)
    if state == "CRASHED":
        text = f"crashed, and is not tried again: {sentence}"
        return Notice("error", f"It {text}", f"Handoff: the release of {label} crashed")
    if error and issubclass(error, _REFUSALS) and not issubclass(error, BuildCrashed):
        return Notice("failure", sentence, f"Handoff: {label} was refused")
    return Notice(
        "error", sentence or kind or "no reason", f"Handoff: the release of {label} failed"
    )


def read_sentence(message: str) -> tuple[str, str]:
    """Return the name of the refusal that a state's message names, "" for none, and its words."""
    rest = _ENCOUNTERED.sub("", message.strip())
    match = _ERROR.match(rest)
    kind, sentence = (match[1], match[2]) if match else ("", rest)
    return kind, one_line(" ".join(sentence.split()))


def truncate_sentence(sentence: str) -> str:
    """Return a sentence as short as a message takes it."""
    return shorten(sentence, _LONGEST_SENTENCE)


def night_message(night: Night) -> tuple[str, str] | None:
    """Return title and text of a night that kept or lost something; None where nothing happened."""
    rows = [row for row in night.rows if row.outcome == "kept" or row.outcome in ALARMING]
    if not rows:
        return None
    lost = [row for row in rows if row.is_lost]
    counts = [f"{len(lost)} lost"] if lost else []
    for outcome in ("kept", *sorted(ALARMING)):
        if number := sum(row.outcome == outcome and row not in lost for row in rows):
            counts.append(f"{number} {outcome}")
    title = f"Handoff: the night of {night.date}: {', '.join(counts)} of {len(night.rows)} models"
    lines = [_format_row(row) for row in (*lost, *(row for row in rows if row not in lost))]
    more = len(lines) - _MOST_ROWS
    return title, "\n".join([*lines[:_MOST_ROWS], *([f"and {more} more"] if more > 0 else [])])


def _format_row(row: NightRow) -> str:
    why = shorten(row.why, _LONGEST_ROW)
    if row.outcome == "kept":
        return f"{row.model}: version {row.old} stays, {row.new} is kept back: {why}"
    return f"{row.model}: {'lost' if row.is_lost else row.outcome}: {why}"


def worker_message(name: str, pool: str, others: int, why: str = "") -> tuple[str, str]:
    """Return title and text of a worker that left, with how many others are online in its pool.

    `why` is what it said itself, if it had the time to.
    """
    left = f"{others} other{'s' * (others != 1)} online there" if others else (
        "nobody works for that pool now: what is posted to it waits"
    )  # fmt: skip
    return (
        f"Handoff: the worker {one_line(name)} left",
        f"It was online in the pool {one_line(pool)}, and isn't any more; {left}."
        + (f" It says: {why}" if why else ""),
    )


# What is looked at twice: clocks differ, and what crashed may be about to be repeated.
_OVERLAP_S = 1800.0
_REMEMBERED_S = 4 * 3600.0
# Prefect takes a worker for gone after some 90 s of silence; one that is started again is back.
GRACE_S = 60.0
_PAGE = 200


@dataclass(frozen=True)
class NotificationKinds:
    """What is looked for: what messages report, what commit statuses do, or both."""

    messages: bool
    statuses: bool


def add_rejected(memory: Memory, rejected: Iterable[RejectedArrival], now: float) -> Memory:
    """Return the memory with a message for each commit that the server refuses for good.

    There is no run of these, and whoever announced them was answered that they are kept.
    """
    for arrival in rejected:
        key = f"aside:{digest_bytes(f'{arrival.what} {arrival.why}'.encode()).hex[:32]}"
        if key not in memory.runs:
            title = f"Handoff: {arrival.what} can't be released"
            memory = enqueue(
                memory,
                [Message(f"release {arrival.what}", title, truncate_sentence(arrival.why), now)],
            )
        memory = replace(memory, runs={**memory.runs, key: now})
    return memory


class EventReader:
    """Looks at one Prefect server; `read_night` gives the record of a nightly's run."""

    def __init__(
        self, client: SyncPrefectClient, kinds: NotificationKinds,
        read_night: Callable[[str], Night | None], *, grace_s: float = GRACE_S,
    ) -> None:  # fmt: skip
        """Look by an open client."""
        self._client = client
        self._kinds = kinds
        self._read_night = read_night
        self._grace_s = grace_s
        self._missing_since: dict[str, float] = {}

    def look(self, memory: Memory, now: float) -> Memory:
        """Return the memory with what is to be reported of what happened since the last look.

        The first one begins with what happens from now on. Raises `EnvironmentLacking` where the
        server can't be asked.
        """
        with explain_prefect_errors(
            "to be asked what happened", "a question that it knows", "It is asked again"
        ):
            since = max(memory.since, memory.looked - _OVERLAP_S) or now
            releases, nights = self._deployment(RELEASE), self._deployment(RECOMPILE)
            deployments = [each for each in (releases, nights) if each is not None]
            for run in self._read_ended(deployments, since) if deployments else ():
                memory = self._report_end(memory, run, now, is_night=run.deployment_id == nights)
            if self._kinds.statuses and releases is not None:
                memory = self._report_beginnings(memory, releases, now)
            if self._kinds.messages:
                memory = self._report_workers(memory, now)
        runs = {key: at for key, at in memory.runs.items() if at > now - _REMEMBERED_S}
        return replace(memory, since=memory.since or now, looked=now, runs=runs)

    def _deployment(self, name: str) -> UUID | None:
        from prefect.exceptions import ObjectNotFound

        try:
            return self._client.read_deployment_by_name(name).id
        except ObjectNotFound:
            return None

    def _read_ended(self, deployments: list[UUID], since: float) -> list[FlowRun]:
        """Return the runs that ended after a moment, the one that ended first first."""
        from prefect.client.schemas.filters import FlowRunFilterEndTime

        after = FlowRunFilterEndTime(after_=datetime.fromtimestamp(since, UTC))
        runs = [run for run in self._runs(deployments, end_time=after) if run.end_time is not None]
        return sorted(runs, key=lambda run: run.end_time or datetime.now(UTC))

    def _runs(self, deployments: list[UUID], **filters: Any) -> Iterator[FlowRun]:  # noqa: ANN401 - Prefect's filters
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
        from prefect.client.schemas.sorting import FlowRunSort

        deployment_filter = FlowRunFilterDeploymentId(any_=deployments)
        run_filter = FlowRunFilter(deployment_id=deployment_filter, **filters)
        for offset in range(0, 50 * _PAGE, _PAGE):
            page = self._client.read_flow_runs(
                flow_run_filter=run_filter, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=offset
            )
            yield from page
            if len(page) < _PAGE:
                return

    def _report_end(self, memory: Memory, run: FlowRun, now: float, *, is_night: bool) -> Memory:
        key = f"{run.id}:ended"
        if key in memory.runs or run.state is None or not run.state.is_final():
            return memory
        if run.state.is_crashed():
            is_followed = self._is_followed(run, now)
            if is_followed is None:
                return memory
            if is_followed:
                return replace(memory, runs={**memory.runs, key: now})
        memory = replace(memory, runs={**memory.runs, key: now})
        report = self._report_night if is_night else self._report_release
        return report(memory, run, now)

    def _is_followed(self, run: FlowRun, now: float) -> bool | None:
        """Return whether another run takes a crashed one's place; None: that may still come."""
        from handoff.flows.children import MOST_ATTEMPTS, PATIENCE_S, attempt_of, successor

        if attempt_of(run) >= MOST_ATTEMPTS:
            return False
        if successor(self._client, run) is not None:
            return True
        ended = run.end_time.timestamp() if run.end_time else now
        return False if now - ended > PATIENCE_S else None

    def _report_release(self, memory: Memory, run: FlowRun, now: float) -> Memory:
        assert run.state is not None
        label = _label(run)
        notice = release_notice(
            label, run.state.type.value, run.state.message or "", self._headline(run)
        )
        statuses = self._status(run, notice.state, notice.text, now)
        if not notice.title or not self._kinds.messages:
            return enqueue(memory, (), statuses)
        subject = f"release {_parameter(run, 'model') or label}"
        return enqueue(
            memory, [Message(subject, notice.title, _with_link(notice.text, run), now)], statuses
        )

    def _report_beginnings(self, memory: Memory, deployment: UUID, now: float) -> Memory:
        """Have the commits of runs that go on or wait say so, once for each run."""
        from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
        from prefect.client.schemas.objects import StateType

        active = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
        state_filter = FlowRunFilterState(type=FlowRunFilterStateType(any_=active))
        for run in self._runs([deployment], state=state_filter):
            key = f"{run.id}:begun"
            if key not in memory.runs:
                text = f"Handoff is to release {_label(run)}."
                memory = enqueue(memory, (), self._status(run, "pending", text, now))
            memory = replace(memory, runs={**memory.runs, key: now})
        return memory

    def _status(self, run: FlowRun, state: Any, text: str, now: float) -> list[PendingStatus]:  # noqa: ANN401 - a forge's State
        repository, commit = _parameter(run, "repository"), _parameter(run, "commit")
        if not self._kinds.statuses or not repository or not commit:
            return []
        return [PendingStatus(CommitStatus(repository, commit, state, text, _page_url(run)), now)]

    def _headline(self, run: FlowRun) -> str:
        """Return what the report of a run is headed with; "" for none."""
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

        if run.state is None or not run.state.is_completed():
            return ""
        artifact_filter = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        artifacts = self._client.read_artifacts(artifact_filter=artifact_filter, limit=20)
        return next(
            (
                artifact.description or ""
                for artifact in artifacts
                if (artifact.key or "").startswith("release-")
            ),
            "",
        )

    def _report_night(self, memory: Memory, run: FlowRun, now: float) -> Memory:
        assert run.state is not None
        if not self._kinds.messages or run.state.is_cancelled():
            return memory
        why, night = "", None
        try:
            night = self._read_night(str(run.id))
        except HandoffError as error:
            why = f" (its record can't be read: {error})"
        message = night_message(night) if night is not None else None
        if message is None and not run.state.is_completed():
            state = run.state.type.value.lower()
            message = (
                f"Handoff: the night {state}",
                truncate_sentence(f"{run.state.message or ''}{why}"),
            )
        if message is None:
            return memory
        return enqueue(memory, [Message("the night", message[0], _with_link(message[1], run), now)])

    def _report_workers(self, memory: Memory, now: float) -> Memory:
        """Report workers that were online at an earlier look, and haven't been for a while."""
        online = {
            f"{pool}/{name}" for pool, names in online_workers(self._client).items()
            for name in names
        }  # fmt: skip
        missing = [worker for worker in memory.workers if worker not in online]
        self._missing_since = {worker: self._missing_since.get(worker, now) for worker in missing}
        departed = [
            worker for worker in missing if now - self._missing_since[worker] >= self._grace_s
        ]
        whys = {
            f"{absence.pool}/{absence.worker}": f"{absence.why}. {absence.remedy}"
            for absence in (read_absences(self._client) if departed else ())
        }
        for worker in departed:
            pool, _, name = worker.partition("/")
            others = sum(other.startswith(f"{pool}/") for other in online)
            title, text = worker_message(
                name, pool, others, truncate_sentence(whys.get(worker, ""))
            )
            memory = enqueue(memory, [Message(f"worker {name}", title, text, now)])
        workers = tuple(sorted(online | (set(missing) - set(departed))))
        return replace(memory, workers=workers)


def _parameter(run: FlowRun, name: str) -> str:
    """Return one of the texts that a release was asked for with; "" where it wasn't."""
    parameters = run.parameters.get("parameters")
    value = parameters.get(name) if isinstance(parameters, dict) else None
    return value if isinstance(value, str) else ""


def _label(run: FlowRun) -> str:
    known = filter(None, (_parameter(run, "model"), _parameter(run, "commit")[:12]))
    return " ".join(known) or run.name


def _page_url(run: FlowRun) -> str:
    """Return the page of a run, where its report is, as people reach it (`PREFECT_UI_URL`)."""
    from prefect.utilities.urls import url_for

    return url_for("flow-run", obj_id=run.id) or ""


def _with_link(text: str, run: FlowRun) -> str:
    return "\n".join(filter(None, (truncate_text(text), _page_url(run))))


def truncate_text(text: str) -> str:
    """Return a text of one sentence or of a few lines, as short as a message takes it."""
    return text if "\n" in text else truncate_sentence(text)
