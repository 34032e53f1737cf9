"""Posting: one commit is one run, however often and by how many at once it is announced."""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.settings import read_settings
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.notify import exit_code, read_arrival, wait_for_end
from handoff.infra.triggers.poster import PostedRun, Poster, open_poster
from tests.infra.triggers.conftest import Handoff, deploy
from tests.limits import LIMIT_S
from tests.prefect_server import free_port, prefect_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def new_commit() -> str:
    return (uuid.uuid4().hex + uuid.uuid4().hex)[:40]


def new_model() -> str:
    return f"toy-{uuid.uuid4().hex[:8]}"


def arrived(model: str = "", commit: str = "") -> Arrival:
    model, commit = model or new_model(), commit or new_commit()
    return Arrival(f"s3://models/in/{model}", model, "https://host/r", commit, "me@here")


def end(client: Any, posted: PostedRun, state: str, message: str = "") -> None:
    from prefect import states

    ended = getattr(states, state)(message=message)
    client.set_flow_run_state(posted.id, ended, force=True)


# The payload and its key.


def test_the_payload_is_the_agreed_one_and_leaves_out_what_isnt_known() -> None:
    arrival = Arrival("s3://models/in/toy", "toy", "https://host/r", COMMIT, "me", "candidate")
    assert arrival.parameters() == {
        "parameters": {
            "model": "toy", "repository": "https://host/r", "commit": COMMIT, "by": "me",
            "delivery": "s3://models/in/toy", "alias": "candidate",
        }
    }  # fmt: skip
    assert Arrival("/data/toy").parameters() == {"parameters": {"delivery": "/data/toy"}}


def test_the_key_is_the_models_commit_or_what_else_is_known() -> None:
    assert Arrival("/d", "toy", commit=COMMIT).key == f"release:toy:{COMMIT}"
    assert Arrival("/d", commit=COMMIT).key == f"release:-:{COMMIT}"
    assert Arrival("/d", "toy", commit=COMMIT, content="c" * 64).key == f"release:toy:{'c' * 64}"
    assert Arrival("/d", "toy").key == Arrival("/d", "toy").key != Arrival("/e", "toy").key


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"model": "To y"}, "a model name"),
        ({"commit": "main"}, "7 to 64 hexadecimal digits"),
        ({"alias": "latest"}, "an alias"),
        ({"by": "a\nb"}, "a by of at most"),
        ({"delivery": "https://me:pw@host/x"}, "without a password"),
    ],
)
def test_what_a_run_would_refuse_is_not_posted(wrong: dict[str, str], match: str) -> None:
    with pytest.raises(UsageProblem, match=match):
        Arrival(**{"delivery": "/data/toy", **wrong})


def test_a_delivery_in_a_commit_is_of_that_commit() -> None:
    nothing = dict.fromkeys(("commit", "model", "repository", "by", "alias"), "")
    parsed = read_arrival(f"git+https://host/r.git@{COMMIT}", **nothing)
    assert (parsed.commit, parsed.repository) == (COMMIT, "https://host/r.git")
    assert read_arrival("delivery", **nothing).delivery == str(Path.cwd() / "delivery")


# With a real server.


@pytest.mark.server
def test_a_commit_is_posted_once_into_its_models_queue_of_one(poster: Poster, client: Any) -> None:
    arrival = arrived()
    first, second = poster.post(arrival), poster.post(arrival)
    assert (first.is_new, second.is_new, second.id) == (True, False, first.id)
    run = client.read_flow_run(first.id)
    assert run.parameters["parameters"] == arrival.parameters()["parameters"]
    expected = {"handoff", f"model:{arrival.model}", f"commit:{arrival.commit[:12]}"}
    assert expected <= set(run.tags)
    assert (run.work_queue_name, run.idempotency_key) == (f"model-{arrival.model}", arrival.key)
    queue = client.read_work_queue_by_name(f"model-{arrival.model}", work_pool_name="handoff-build")
    assert queue.concurrency_limit == 1
    assert first.address.endswith(f"/runs/flow-run/{first.id}")


@pytest.mark.server
def test_of_eight_who_post_one_commit_at_once_one_makes_the_run(prefect_api: str) -> None:
    from prefect.client.orchestration import SyncPrefectClient

    arrival = arrived()

    def post(_: int) -> PostedRun:
        with SyncPrefectClient(prefect_api) as own:
            return Poster(own).post(arrival)

    with ThreadPoolExecutor(8) as pool:
        posted = list(pool.map(post, range(8)))
    assert len({one.id for one in posted}) == 1
    assert [one.is_new for one in posted].count(True) == 1


@pytest.mark.server
@pytest.mark.parametrize("state", ["Crashed", "Cancelled"])
def test_what_was_lost_is_followed_by_another_attempt(
    state: str, poster: Poster, client: Any
) -> None:
    arrival = arrived()
    first = poster.post(arrival)
    end(client, first, state)
    second = poster.post(arrival)
    assert (second.is_new, second.attempt, second.id != first.id) == (True, 2, True)
    assert client.read_flow_run(second.id).idempotency_key == f"{arrival.key}:2"
    assert poster.post(arrival).id == second.id
    end(client, second, state)
    assert poster.post(arrival).attempt == 3


@pytest.mark.server
@pytest.mark.parametrize("state", ["Completed", "Failed"])
def test_what_was_released_or_refused_is_repeated_only_when_asked(
    state: str, poster: Poster, client: Any
) -> None:
    arrival = arrived()
    first = poster.post(arrival, again=True)
    assert poster.post(arrival, again=True).id == first.id, "it hasn't ended"
    end(client, first, state)
    before = poster.post(arrival)
    assert (before.id, before.is_new, before.state) == (first.id, False, state)
    again = poster.post(arrival, again=True)
    assert (again.is_new, again.attempt) == (True, 2)


@pytest.mark.server
def test_a_crashed_run_that_prefect_repeats_is_not_posted_again(
    poster: Poster, client: Any
) -> None:
    arrival = arrived()
    first = poster.post(arrival)
    end(client, first, "Crashed")
    run = client.read_flow_run(first.id)
    repeat = client.create_flow_run_from_deployment(
        run.deployment_id, parameters={**run.parameters, "attempt": 2},
        idempotency_key=f"resume:{run.id}",
    )  # fmt: skip
    assert (poster.post(arrival).id, poster.follow(first).id) == (repeat.id, repeat.id)


@pytest.mark.server
def test_a_newer_commit_supersedes_the_older_ones_of_its_model_alone(
    poster: Poster, client: Any
) -> None:
    model = new_model()
    waiting, running, done = (poster.post(arrived(model)) for _ in range(3))
    other = poster.post(arrived())
    end(client, running, "Running")
    end(client, done, "Completed")
    newest = poster.post(arrived(model), policy="supersede")
    assert set(newest.superseded) == {waiting.name, running.name}
    states = {one.id: client.read_flow_run(one.id).state.name for one in (waiting, running, done)}
    assert states == {waiting.id: "Cancelled", running.id: "Cancelling", done.id: "Completed"}
    assert client.read_flow_run(other.id).state.is_scheduled()
    assert client.read_flow_run(newest.id).state.is_scheduled()
    later = poster.post(arrived(model))
    assert later.superseded == ()
    assert client.read_flow_run(newest.id).state.is_scheduled()


@pytest.mark.server
def test_what_the_servers_form_refuses_is_told_with_its_reason(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"parameters": {"delivery": "/d", "unknown": 1}}
    monkeypatch.setattr(Arrival, "parameters", lambda _: wrong)
    with pytest.raises(UsageProblem, match=r"refuses the run: .*unknown"):
        poster.post(arrived())


@pytest.mark.server
def test_without_the_deployment_it_says_what_to_do(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handoff.infra.triggers.poster.RELEASE", "release/none")
    with pytest.raises(EnvironmentLacking, match="Run 'handoff deploy' once"):
        poster.post(arrived())


@pytest.mark.server
@pytest.mark.long
def test_a_server_whose_database_was_made_anew_is_asked_again(tmp_path: Path) -> None:
    from prefect.client.orchestration import SyncPrefectClient

    arrival, port = arrived(), free_port()
    with SyncPrefectClient(f"http://127.0.0.1:{port}/api") as own:
        poster = Poster(own)
        with prefect_server(tmp_path / "before", port) as api:
            deploy(api)
            before = poster.post(arrival)
        with prefect_server(tmp_path / "after", port) as api:
            with pytest.raises(EnvironmentLacking, match="Run 'handoff deploy' once"):
                poster.post(arrival)
            deploy(api)
            after = poster.post(arrival)
            assert (after.is_new, after.id != before.id) == (True, True)
            queue = own.read_work_queue_by_name(arrival.queue, work_pool_name="handoff-build")
            assert queue.concurrency_limit == 1
            assert poster.post(arrival).id == after.id


@pytest.mark.server
def test_one_poster_outlives_a_server_that_was_deployed_anew_meanwhile(
    prefect_api: str, poster: Poster, client: Any
) -> None:
    first = poster.post(arrived())
    client.delete_deployment(client.read_flow_run(first.id).deployment_id)
    deploy(prefect_api)
    assert poster.post(arrived()).is_new


def test_without_a_server_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with (
        pytest.raises(EnvironmentLacking, match="Start one with 'handoff up'"),
        open_poster(read_settings()),
    ):
        pass


@pytest.mark.parametrize(
    ("state", "message", "code"),
    [
        ("Completed", "", 0),
        ("Crashed", "BlessingRefused", 1),
        ("Failed", "Flow run encountered an exception: BlessingRefused: x: expected y", 4),
        ("Failed", "Flow run encountered an exception: StoreFailed: x", 5),
        ("Failed", "ValueError: x", 1),
    ],
)
def test_the_exit_code_of_a_run_is_that_of_its_refusal(state: str, message: str, code: int) -> None:
    assert exit_code(PostedRun("n", uuid.uuid4(), state, True, 1, "a", message)) == code


@dataclass
class Changing(Poster):
    """Tells of a run that changes each time that it is asked for."""

    states: list[str]

    def follow(self, posted: PostedRun) -> PostedRun:
        state = self.states.pop(0)
        if state == "away":
            raise EnvironmentLacking("away", expected="a", got="b", remedy="c")
        return replace(posted, state=state)


@pytest.mark.parametrize(
    ("states", "end"),
    [
        (["Pending", "away", "away", "Running", "away", "Completed"], "Completed"),
        (["Crashed", "Crashed", "Scheduled", "Running", "Failed"], "Failed"),
        (["Crashed"] * 999, "Crashed"),
        (["Cancelling", "Cancelled"], "Cancelled"),
    ],
)
def test_waiting_outlives_the_server_and_a_crash_that_is_repeated(
    states: list[str], end: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    posted = PostedRun("n", uuid.UUID(int=1), "Scheduled", True, 1, "a")
    away = bool("away" in states)
    assert wait_for_end(Changing(states), posted, quiet=False).state == end
    assert ("handoff: away" in capsys.readouterr().err) == away


# The command line.


@pytest.mark.server
def test_notify_tells_of_its_run_and_the_second_time_of_the_first(handoff: Handoff) -> None:
    commit, model = new_commit(), new_model()
    said = ("notify", "--delivery", "s3://models/in/toy", "--commit", commit, "--model", model)
    first = handoff(*said)
    assert (first.returncode, first.stderr) == (0, "")
    assert f"posted {model} {commit[:12]}: run " in first.stdout
    answer = json.loads(handoff(*said, "--json").stdout)
    assert (answer["new"], answer["key"]) == (False, f"release:{model}:{commit}")
    # A slow machine has let it wait for so long that Prefect calls it late.
    assert answer["state"] in {"Scheduled", "Late"}
    assert answer["id"] in first.stdout


@pytest.mark.server
def test_notify_waits_for_the_end_and_ends_with_its_code(handoff: Handoff, client: Any) -> None:
    commit, model = new_commit(), new_model()
    said = ("notify", "--delivery", "/data/toy", "--commit", commit, "--model", model)
    run = json.loads(handoff(*said, "--json").stdout)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handoff, *said, "--wait")
        refusal = "Flow run encountered an exception: DeliveryUnsound: it is not: expected x"
        posted = PostedRun(run["name"], uuid.UUID(run["id"]), "", True, 1, "")
        end(client, posted, "Failed", refusal)
        ended = waiting.result()
    assert ended.returncode == 2
    assert f"{model} {commit[:12]} was posted before: run " in ended.stdout
    assert "Failed: Flow run encountered an exception: DeliveryUnsound" in ended.stdout


def test_notify_to_nobody_is_a_sentence_within_seconds(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "handoff", "notify", "--delivery", "/d"],
        env={
            **os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api",
            "HANDOFF_HOME": str(tmp_path),
        },
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("handoff: the Prefect server can't be reached: expected")
    assert time.monotonic() - began < 30
