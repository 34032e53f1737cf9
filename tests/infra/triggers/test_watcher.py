"""The watcher: what is complete is posted once, and no trouble ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.delivery.contract import (
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
)
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.locations import open_location
from handoff.infra.triggers.poster import PostedRun, Poster
from handoff.infra.triggers.watcher import Watcher
from tests.infra.triggers.conftest import Handoff
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Posts(Poster):
    """Posts nowhere, and remembers."""

    arrived: list[Arrival] = field(default_factory=list)
    error: HandoffError | None = None

    def post(
        self, arrival: Arrival, *, policy: Policy = "queue", again: bool = False, once: bool = False
    ) -> PostedRun:
        if self.error:
            raise self.error
        is_new = arrival.key not in {one.key for one in self.arrived}
        self.arrived.append(arrival)
        return PostedRun("quick-fox", uuid.UUID(int=1), "Scheduled", is_new, 1, "http://x")


def contract(model: str = "toy", commit: str = COMMIT) -> str:
    source = Lineage("https://host/r", commit, author="ada")
    return format_contract(
        DeliveryContract(ModelSection(model), (TensorSpec("x", "float32", (1,)),), source=source)
    )


def deliver(folder: Path, model: str = "toy") -> None:
    folder.mkdir(parents=True)
    (folder / "state_dict.pt").write_bytes(b"weights")
    (folder / "delivery.toml").write_text(contract(model))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_a_delivery_is_posted_once_when_it_stopped_changing(place: Path) -> None:
    posts = Posts()
    watcher = Watcher(open_location(str(place)), posts)
    (place / "toy").mkdir()
    (place / "toy" / "state_dict.pt").write_bytes(b"wei")
    for _ in range(3):
        watcher.look()
    assert posts.arrived == [], "no contract yet"
    (place / "toy" / "delivery.toml").write_text(contract())
    watcher.look()
    (place / "toy" / "state_dict.pt").write_bytes(b"weights")
    watcher.look()
    assert posts.arrived == [], "still changing"
    watcher.look()
    watcher.look()
    (arrival,) = posts.arrived
    assert (arrival.delivery, arrival.model) == (str(place / "toy"), "toy")
    assert (arrival.commit, arrival.by, arrival.repository) == (COMMIT, "ada", "https://host/r")


def test_other_weights_of_one_commit_are_another_request_and_a_restart_is_none(
    place: Path,
) -> None:
    deliver(place / "toy")
    posts = Posts()
    for _ in range(2):
        watcher = Watcher(open_location(str(place)), posts)
        watcher.look()
        watcher.look()
    first, restarted = posts.arrived
    assert first.key == restarted.key
    (place / "toy" / "state_dict.pt").write_bytes(b"retrained")
    watcher.look()
    watcher.look()
    assert posts.arrived[2].key != first.key
    assert posts.arrived[2].commit == first.commit


def test_hidden_folders_links_and_files_are_no_deliveries(place: Path, tmp_path: Path) -> None:
    deliver(place / ".toy")
    deliver(tmp_path / "elsewhere")
    (place / "link").symlink_to(tmp_path / "elsewhere")
    (place / "file").touch()
    posts = Posts()
    watcher = Watcher(open_location(str(place)), posts)
    watcher.look()
    watcher.look()
    assert posts.arrived == []


def test_a_contract_that_cant_be_read_is_told_once_and_the_others_go_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver(place / "a")
    (place / "a" / "delivery.toml").write_text("format = ")
    deliver(place / "b")
    posts = Posts()
    watcher = Watcher(open_location(str(place)), posts)
    for _ in range(4):
        watcher.look()
    assert [one.delivery for one in posts.arrived] == [str(place / "b")]
    assert capsys.readouterr().err.count("its delivery.toml can't be read") == 1


def test_an_outage_is_told_once_and_made_up_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deliver(place / "toy")
    posts = Posts(error=EnvironmentLacking("no", expected="a", got="b", remedy="c"))
    watcher = Watcher(open_location(str(place)), posts)
    for _ in range(5):
        watcher.look()
    assert watcher.exit_code == 1
    assert capsys.readouterr().err.count("handoff: no: expected a") == 1
    shutil.move(place, place.with_name("away"))
    watcher.look()
    assert "can't be looked at" in capsys.readouterr().err
    shutil.move(place.with_name("away"), place)
    posts.error = None
    watcher.look()
    assert len(posts.arrived) == 1
    assert watcher.exit_code == 0


def test_what_cant_be_watched_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="can't be watched"):
        open_location(str(tmp_path / "none"))
    with pytest.raises(UsageProblem, match="s3://bucket/prefix"):
        open_location("s3://")


@pytest.mark.server
def test_a_prefix_in_s3_is_watched_by_its_etags(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")

    def put(key: str, body: str) -> None:
        client.put_object(Bucket="models", Key=key, Body=body.encode())

    posts = Posts()
    watcher = Watcher(open_location("s3://models/in"), posts)
    put("in/toy/state_dict.pt", "weights")
    put("in/stray", "x")
    watcher.look()
    watcher.look()
    assert posts.arrived == []
    put("in/toy/delivery.toml", contract())
    for _ in range(3):
        watcher.look()
    put("in/toy/state_dict.pt", "retrained")
    for _ in range(3):
        watcher.look()
    first, second = posts.arrived
    assert first.delivery == second.delivery == "s3://models/in/toy"
    assert (first.commit, first.key != second.key) == (COMMIT, True)


@pytest.mark.server
def test_once_posts_what_is_there_and_a_second_time_nothing(
    handoff: Handoff, place: Path, client: Any
) -> None:
    model = f"toy-{uuid.uuid4().hex[:8]}"
    deliver(place / "toy", model)
    said = ("watch", str(place), "--once", "--every", "0.2")
    first, second = handoff(*said), handoff(*said)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert f"posted {model} {COMMIT[:12]} from {place / 'toy'}: run " in first.stdout
    assert "posted" not in second.stdout.replace("is posted when", "")
    name = first.stdout.rpartition("run ")[2].strip()
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    wanted = FlowRunFilter(name=FlowRunFilterName(any_=[name]))
    (run,) = client.read_flow_runs(flow_run_filter=wanted)
    assert run.parameters["parameters"]["delivery"] == str(place / "toy")
    assert run.work_queue_name == f"model-{model}"


@pytest.mark.server
@pytest.mark.long
def test_a_watcher_outlives_its_server(place: Path, tmp_path: Path) -> None:
    """It is started before there is a server, and posts when one has come up."""
    from tests.infra.triggers.conftest import DEPLOY

    deliver(place / "toy")
    log = tmp_path / "watch.log"
    with prefect_server(tmp_path / "prefect") as address:
        environment = {
            **os.environ, "PREFECT_API_URL": address, "HANDOFF_HOME": str(tmp_path / "home"),
        }  # fmt: skip
        # Without the deployments the server is as good as none.
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "handoff", "watch", str(place), "--every", "0.5"],
                env=environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            _wait_for(lambda: "Run 'handoff deploy' once" in log.read_text(), log)
            subprocess.run(
                [sys.executable, "-c", DEPLOY], env=environment, check=True, timeout=LIMIT_S
            )
            _wait_for(lambda: "posted toy" in log.read_text(), log)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=LIMIT_S)
    assert log.read_text().count("handoff deploy") == 1


def _wait_for(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
