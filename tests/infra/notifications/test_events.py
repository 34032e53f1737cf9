"""What a look at a real Prefect server finds: ends, beginnings, nights, workers, and once each."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import EnvironmentLacking, StoreFailed, UsageProblem
from handoff.artifacts.night import LOST, Night, NightRow
from handoff.infra.notifications.events import (
    EventReader,
    NotificationKinds,
    add_rejected,
    worker_message,
)
from handoff.infra.notifications.outbox import Memory, Message
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.poster import PostedRun
from handoff.infra.triggers.spool import Spool
from tests.infra.notifications.conftest import Releases
from tests.served_stack import wait_until

BOTH = NotificationKinds(messages=True, statuses=True)
REFUSED = "Flow run encountered an exception: DeliveryUnsound: the model draws random numbers: " \
    "expected none, got torch.rand_like. Take it out"  # fmt: skip
pytestmark = pytest.mark.server


def no_night(_: str) -> Night | None:
    return None


def make_reader(
    client: Any, kinds: NotificationKinds = BOTH, **options: Any
) -> tuple[EventReader, Memory]:
    """Return what looks, with what it remembers of a first look."""
    found = EventReader(client, kinds, options.pop("read_night", no_night), **options)
    return found, found.look(Memory(), time.time())


def new(memory: Memory, before: Memory) -> tuple[list[Message], list[tuple[str, str]]]:
    """Return the messages and the statuses that a look added."""
    had = set(before.statuses)
    statuses = [one.status for one in memory.statuses if one not in had]
    texts = [(str(one.state), one.text) for one in statuses]
    return list(memory.messages[len(before.messages) :]), texts


def test_a_refused_release_is_told_once_with_its_sentence_and_its_page(
    client: Any, releases: Releases
) -> None:
    look, first = make_reader(client)
    posted = releases.post("ranker-a")
    begun = look.look(first, time.time())
    messages, statuses = new(begun, first)
    assert messages == []
    assert statuses == [("pending", f"Handoff is to release ranker-a {_commit(client, posted)}.")]
    releases.end(posted.id, "Failed", REFUSED)
    ended = look.look(begun, time.time())
    (message,), ((state, text),) = new(ended, begun)
    assert (state, message.subject) == ("failure", "release ranker-a")
    assert text == "the model draws random numbers: expected none, got torch.rand_like. Take it out"
    assert message.title == f"Handoff: ranker-a {_commit(client, posted)} was refused"
    assert message.text.startswith(text)
    assert message.text.endswith(f"/runs/flow-run/{posted.id}")
    assert ended.statuses[-1].status.link == message.text.splitlines()[-1]
    again = look.look(ended, time.time())
    assert new(again, ended) == ([], [])


def _commit(client: Any, posted: Any) -> str:
    commit: str = client.read_flow_run(posted.id).parameters["parameters"]["commit"]
    return commit[:12]


def test_what_was_released_is_a_status_with_its_reports_headline_and_no_message(
    client: Any, releases: Releases
) -> None:
    from prefect.client.schemas.actions import ArtifactCreate

    look, before = make_reader(client)
    posted, found_again = releases.post(), releases.post()
    headline = "**toy@3** is released as @candidate."
    client.create_artifact(
        ArtifactCreate(
            key="release-toy", type="markdown", data=headline, description=headline,
            flow_run_id=posted.id,
        )
    )  # fmt: skip
    for one in (posted, found_again):
        releases.end(one.id, "Completed")
    messages, statuses = new(look.look(before, time.time()), before)
    assert messages == []
    assert statuses == [
        ("success", "toy@3 is released as @candidate."),
        ("success", "Released; it was made before."),
    ]


@pytest.mark.parametrize(
    ("state", "message", "ended"),
    [
        ("Failed", "Flow run encountered an exception: StoreFailed: no room", "error failed"),
        ("Failed", "Flow run encountered an exception: BuildCrashed: killed", "error failed"),
        ("Failed", "Flow run encountered an exception: ValueError: x", "error failed"),
        ("Failed", "Flow run encountered an exception: NotShownYet: it is", "success"),
        ("Cancelled", "superseded by toy", "error"),
    ],
)
def test_other_ends_are_what_they_are(
    state: str, message: str, ended: str, client: Any, releases: Releases
) -> None:
    look, before = make_reader(client)
    releases.end(releases.post().id, state, message)
    messages, ((found, _),) = new(look.look(before, time.time()), before)
    assert " ".join([found, *(one.title.rpartition(" ")[2] for one in messages)]) == ended


def test_a_crash_is_told_only_when_nothing_takes_its_place(client: Any, releases: Releases) -> None:
    look, before = make_reader(client, NotificationKinds(messages=True, statuses=False))
    repeated, given_up = releases.post(), releases.post()
    for one in (repeated, given_up):
        releases.end(one.id, "Crashed", "killed")
    soon = look.look(before, time.time())
    assert new(soon, before)[0] == []
    run = client.read_flow_run(repeated.id)
    again = client.create_flow_run_from_deployment(
        run.deployment_id, parameters={**run.parameters, "attempt": 3},
        idempotency_key=f"resume:{run.id}",
    )  # fmt: skip
    later = look.look(soon, time.time() + 500)
    (message,) = new(later, soon)[0]
    assert message.title.endswith("crashed")
    assert str(given_up.id) in message.text
    releases.end(again.id, "Crashed", "killed a third time")
    last = look.look(later, time.time())
    (message,) = new(last, later)[0]
    assert "killed a third time" in message.text


def test_what_happened_while_nobody_looked_is_told_and_what_was_before_is_not(
    client: Any, releases: Releases
) -> None:
    releases.end(releases.post("before").id, "Failed", REFUSED)
    time.sleep(0.1)
    _, first = make_reader(client)
    releases.end(releases.post("meanwhile").id, "Failed", REFUSED)
    other = EventReader(client, BOTH, no_night)
    hours_later = other.look(first, time.time() + 3 * 3600)
    (message,), _ = new(hours_later, first)
    assert message.subject == "release meanwhile"


def night(*rows: NightRow) -> Night:
    return Night(
        "2026-11-27", "2026-11-27T02:00:00+00:00", "2026-11-27T03:00:00+00:00",
        rows=tuple(sorted(rows, key=lambda row: row.model)),
    )  # fmt: skip


KEPT = NightRow("ranker", "kept", 3, 4, "p50 is 12 % slower than version 3's")
GONE = NightRow("toy", "failed", None, None, f"version 2 was served, and {LOST}/store any more")
FINE = NightRow("resnet18", "unchanged", 7)


def test_a_night_that_kept_or_lost_a_model_is_told_with_what_changed(
    client: Any, releases: Releases
) -> None:
    look, before = make_reader(client, read_night=lambda _: night(KEPT, GONE, FINE))
    releases.end(_night(client), "Failed", "NightFailed: 1 of 3")
    (message,), statuses = new(look.look(before, time.time()), before)
    assert statuses == []
    assert message.title == "Handoff: the night of 2026-11-27: 1 lost, 1 kept of 3 models"
    first, second, link = message.text.splitlines()
    assert first == "toy: lost: version 2 was served, and the model isn't in /store any more"
    assert second == "ranker: version 3 stays, 4 is kept back: p50 is 12 % slower than version 3's"
    assert "/runs/flow-run/" in link


def _night(client: Any) -> uuid.UUID:
    nightly = client.read_deployment_by_name("recompile/handoff").id
    found: uuid.UUID = client.create_flow_run_from_deployment(nightly).id
    return found


@pytest.mark.parametrize("record", [night(FINE), None])
def test_a_quiet_night_is_not_reported(
    record: Night | None, client: Any, releases: Releases
) -> None:
    look, before = make_reader(client, read_night=lambda _: record)
    releases.end(_night(client), "Completed")
    assert new(look.look(before, time.time()), before) == ([], [])


def test_a_night_whose_record_cant_be_read_is_told_by_its_runs_own_words(
    client: Any, releases: Releases
) -> None:
    def unreadable(_: str) -> Night:
        raise StoreFailed("the bucket is gone", expected="a", got="b", remedy="c")

    look, before = make_reader(client, read_night=unreadable)
    releases.end(_night(client), "Failed", "StoreFailed: it can't be reached")
    (message,), _ = new(look.look(before, time.time()), before)
    assert message.title == "Handoff: the night failed"
    assert "it can't be reached (its record can't be read: the bucket is gone" in message.text


def test_a_worker_that_left_is_told_with_its_own_reason() -> None:
    _, text = worker_message("build-2", "handoff-build", 1, "compiler: there is none. Install g++")
    assert "1 other online there. It says: compiler: there is none. Install g++" in text
    assert "It says" not in worker_message("build-2", "handoff-build", 1)[1]


def test_a_worker_that_left_is_told_once_and_one_that_stays_is_not(client: Any) -> None:
    from prefect.client.schemas.objects import WorkerStatus

    pool = "handoff-build"
    leaves, stays = (f"{name}@{uuid.uuid4().hex[:6]}" for name in ("leaves", "stays"))
    client.send_worker_heartbeat(pool, leaves, heartbeat_interval_seconds=1)
    client.send_worker_heartbeat(pool, stays, heartbeat_interval_seconds=600)
    look, before = make_reader(client, grace_s=30)
    assert {f"{pool}/{leaves}", f"{pool}/{stays}"} <= set(before.workers)

    def is_gone() -> bool:
        workers = {one.name: one.status for one in client.read_workers_for_work_pool(pool)}
        return bool(workers[leaves] == WorkerStatus.OFFLINE)

    wait_until("Prefect holds it to be gone", is_gone, 90)
    now = time.time()
    soon = look.look(before, now)
    assert new(soon, before)[0] == [], "it may be back in a moment"
    late = look.look(soon, now + 31)
    (message,) = new(late, soon)[0]
    assert (message.subject, message.title) == (
        f"worker {leaves}", f"Handoff: the worker {leaves} left",
    )  # fmt: skip
    assert "handoff-build" in message.text
    assert "other" in message.text
    assert new(look.look(late, now + 99), late)[0] == []


def test_a_commit_that_the_server_refuses_for_good_is_told_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.keep(Arrival("/data/toy", "toy", commit="a" * 40), "queue")
    spool.keep(Arrival("/data/fine", "fine", commit="b" * 40), "queue")

    def post(arrival: Arrival, _: Any) -> PostedRun:
        if arrival.model == "toy":
            raise UsageProblem("the server refuses the run", expected="a", got="b", remedy="c")
        return PostedRun("quick-fox", uuid.UUID(int=1), "Scheduled", True, 1, "http://x")

    spool.deliver(post)
    memory = add_rejected(Memory(), spool.list_set_aside(), 1.0)
    (message,) = memory.messages
    assert message.title == f"Handoff: toy {'a' * 12} can't be released"
    assert message.text == "the server refuses the run: expected a, got b. C"
    assert add_rejected(memory, spool.list_set_aside(), 9e9).messages == memory.messages


def test_a_server_that_isnt_there_is_a_sentence() -> None:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        SyncPrefectClient("http://127.0.0.1:9/api") as nobody,
        pytest.raises(EnvironmentLacking, match="can't be reached"),
    ):
        EventReader(nobody, BOTH, no_night).look(Memory(), time.time())


def test_runs_are_forgotten_when_they_are_looked_at_no_more(client: Any) -> None:
    look, first = make_reader(client)
    long_ago = (datetime.now(UTC) - timedelta(days=1)).timestamp()
    memory = replace(first, runs={"a:ended": long_ago, "b:ended": time.time()})
    assert "a:ended" not in look.look(memory, time.time()).runs
    assert "b:ended" in look.look(memory, time.time()).runs
