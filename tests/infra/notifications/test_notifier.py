"""`handoff tell` as a process: real receivers, a real server, and what its log never holds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.night import Night, NightRow, write_night
from handoff.artifacts.stores.store import open_store
from handoff.flows.nightly.night import night_stamp
from handoff.infra.notifications.notifier import read_night, send
from handoff.infra.notifications.outbox import Memory, memory_file, read_memory, write_memory
from handoff.infra.settings import read_settings
from tests.infra.notifications.conftest import Releases, RunNotifier
from tests.infra.notifications.receivers import COMMIT, TOKEN, Receiver, receiving_mail
from tests.limits import LIMIT_S
from tests.served_stack import wait_until

REFUSED = "Flow run encountered an exception: BlessingRefused: the output logits is wrong: " \
    "expected 1.0, got 2.0. Look at the report"  # fmt: skip
pytestmark = pytest.mark.server


def has_looked(home: Path) -> None:
    """Let `handoff tell` have looked from there a moment ago, for the first time."""
    now = time.time()
    write_memory(memory_file(home), Memory(since=now, looked=now))


def test_a_refused_release_reaches_people_and_its_commit(
    run_notifier: RunNotifier, releases: Releases, people: Receiver, forge: Receiver, tmp_path: Path
) -> None:
    has_looked(tmp_path / "home")
    posted = releases.post("toy-told", COMMIT)
    assert run_notifier("--once").returncode == 0
    releases.end(posted.id, "Failed", REFUSED)
    ended = run_notifier("--once")
    assert (ended.returncode, ended.stdout) == (0, "")
    ours = [one for one in forge.came if one.path.endswith(COMMIT)]
    assert [one.body["state"] for one in ours] == ["pending", "failure"]
    assert ours[0].path == f"/api/v1/repos/team/toy/statuses/{COMMIT}"
    assert ours[0].headers["authorization"] == f"token {TOKEN}"
    assert ours[1].body["description"].startswith("the output logits is wrong: expected 1.0")
    assert ours[1].body["target_url"].endswith(f"/runs/flow-run/{posted.id}")
    (message,) = [one.body for one in people.came if "toy-told" in one.body["title"]]
    assert message["title"] == f"Handoff: toy-told {COMMIT[:12]} was refused"
    assert message["text"].startswith("the output logits is wrong: expected 1.0, got 2.0.")
    assert TOKEN not in ended.stderr
    assert f"commit status: failure of {COMMIT[:12]}" in ended.stderr


def test_receivers_that_are_down_are_said_in_the_log_and_told_later(
    run_notifier: RunNotifier, releases: Releases, people: Receiver, forge: Receiver, tmp_path: Path
) -> None:
    has_looked(tmp_path / "home")
    posted = releases.post("toy-later", COMMIT)
    releases.end(posted.id, "Failed", REFUSED)
    people.answers = [(500, {}, "{}")]
    forge.answers = [(503, {}, "{}")]
    ended = run_notifier("--once")
    assert ended.returncode == 0
    assert "a message waits, and is tried again: the message was not taken" in ended.stderr
    assert "a commit status waits, and is tried again" in ended.stderr
    assert people.url not in ended.stderr, "a receiver's address is a secret"
    people.came.clear()
    assert run_notifier("--once").returncode == 0
    assert [one.body["title"] for one in people.came if "toy-later" in one.body["title"]] == [
        f"Handoff: toy-later {COMMIT[:12]} was refused"
    ]
    assert forge.came[-1].body["state"] == "failure"


def test_a_test_message_and_a_test_status_are_seen_at_once(
    run_notifier: RunNotifier, people: Receiver, forge: Receiver
) -> None:
    ended = run_notifier("--test", "--repository", f"{forge.url}/team/toy", "--commit", COMMIT)
    # Prefect's client says so where it takes a while to send its own log.
    lines = [one for one in ended.stderr.splitlines() if not one.startswith("Still processing")]
    assert (ended.returncode, lines) == (0, [])
    assert "a message was sent through custom-webhook/team-" in ended.stdout
    assert f"the status handoff/test was set on {COMMIT[:12]}" in ended.stdout
    assert people.came[0].body["title"] == "Handoff: a test"
    assert (forge.came[0].body["context"], forge.came[0].body["state"]) == (
        "handoff/test", "success",
    )  # fmt: skip


def test_a_test_that_fails_says_why(
    run_notifier: RunNotifier, people: Receiver, forge: Receiver
) -> None:
    people.answers = [(404, {}, "{}")]
    refused = run_notifier("--test")
    assert refused.returncode == 1
    assert "expected its receiver to take it, got HTTP 404" in refused.stderr
    nobody = run_notifier("--test", HANDOFF_NOTIFY="slack-webhook/nobody")
    assert nobody.returncode == 64
    assert "has no such block" in nobody.stderr
    foreign = run_notifier(
        "--test", "--repository", "https://other.example.org/a/b", "--commit", COMMIT,
        HANDOFF_NOTIFY="",
    )  # fmt: skip
    assert foreign.returncode == 64
    assert "that commit can't have a status" in foreign.stderr
    assert forge.came == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"HANDOFF_NOTIFY": "", "HANDOFF_FORGE": ""}, "nobody is set to be notified"),
        ({"HANDOFF_FORGE_TOKEN_FILE": "/nowhere"}, "the token for commit statuses can't be read"),
        ({"PREFECT_API_URL": ""}, "Start one with 'handoff up'"),
    ],
)
def test_settings_that_name_nobody_are_a_sentence(
    changed: dict[str, str], message: str, run_notifier: RunNotifier
) -> None:
    ended = run_notifier("--once", **changed)
    assert ended.returncode in {1, 64}
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_it_goes_on_until_sigterm_and_is_alone(
    environment: dict[str, str], run_notifier: RunNotifier, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "handoff", "tell", "--every", "1"]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stderr=stream)
    try:
        file = memory_file(Path(environment["HANDOFF_HOME"]))
        wait_until("it has looked", lambda: read_memory(file).looked > 0, 60)
        second = run_notifier("--once")
        assert second.returncode == 1
        assert "people would be notified twice" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
    assert log.read_text() == ""


def test_the_record_of_a_night_is_found_by_its_run(
    client: Any, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.delenv("HANDOFF_STORE", raising=False)
    nightly = client.read_deployment_by_name("recompile/handoff").id
    run = str(client.create_flow_run_from_deployment(nightly).id)
    settings = read_settings()
    assert read_night(settings, run) is None
    stamp = night_stamp(run)
    began = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}"
    night = Night(
        began[:10], f"{began}+00:00", f"{began}+00:00", rows=(NightRow("toy", "kept", 1, 2, "x"),)
    )
    write_night(open_store(settings.stores.objects), night)
    assert read_night(settings, run) == night


def test_mail_goes_through_a_block_with_an_address_of_apprises(client: Any) -> None:
    from prefect.blocks.notifications import SlackWebhook

    name = f"mail-{uuid.uuid4().hex[:8]}"
    with receiving_mail() as (port, mails):
        to = f"mailto://127.0.0.1:{port}/?from=handoff@example.org&to=team@example.org&format=text"
        SlackWebhook(url=to).save(name)
        send(f"slack-webhook/{name}", "Handoff: toy was refused", "the output is wrong")
    (mail,) = mails
    assert "Subject: Handoff: toy was refused" in mail
    assert "To: team@example.org" in mail
    assert "the output is wrong" in mail
    with pytest.raises(EnvironmentLacking, match="was not taken") as caught:
        send(f"slack-webhook/{name}", "Handoff: toy was refused", "the output is wrong")
    assert "team@example.org" not in str(caught.value)
