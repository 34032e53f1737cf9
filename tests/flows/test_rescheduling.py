"""What fails for a machine's sake goes back to its pool; what fails for the model's does not."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from handoff.artifacts.errors import (
    ERRORS,
    BlessingRefused,
    EnvironmentLacking,
    StepCrashed,
    StepKilled,
    StoreUnreachable,
    attribute_to_machine,
)
from handoff.artifacts.host import HostSettings, SigningKey, Stores
from handoff.artifacts.recipe.target import parse_target
from handoff.artifacts.release.ledger import SeenLedgers
from handoff.flows import host
from handoff.flows.rescheduling import MOST_TRIES
from handoff.flows.target import targets
from handoff.infra.engine.budget import step_killed_error
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_client


@dataclass
class Worker:
    """What a worker does with a flow run, on this machine, by hand."""

    client: Any
    home: Path

    def deployed(self) -> dict[str, UUID]:
        """Deploy, and return the deployments by their names."""
        answer = subprocess.run(
            [sys.executable, "-m", "handoff", "deploy", "--json"], env=self.environment(),
            capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, str]] = json.loads(answer.stdout)["deployments"]
        return {one["name"]: UUID(one["id"]) for one in found}

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "HANDOFF_"))}
        api = str(self.client.api_url).rstrip("/")
        return {**kept, "PREFECT_API_URL": api, "HANDOFF_HOME": str(self.home)}

    def tried(self, run: Any) -> Any:
        """Try the run in a process of its own; return it as it is then."""
        from prefect.states import Pending

        self.client.set_flow_run_state(run.id, Pending())
        program = subprocess.run(
            [sys.executable, "-P", "-m", "handoff.infra.prefect.flow_run"], check=False,
            env={**self.environment(), "PREFECT__FLOW_RUN_ID": str(run.id)},
            capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        # Of another one Prefect's worker would say that it crashed.
        assert program.returncode == 0, program.stderr
        return self.client.read_flow_run(run.id)

    def shown(self, run: Any) -> list[str]:
        """Return what the run's page is headed with."""
        found = [one for one in self.client.read_artifacts() if one.flow_run_id == run.id]
        return [one.description for one in found if one.key]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("stack")
    with prefect_client(folder / "prefect") as client:
        yield Worker(client, folder / "home")


@pytest.fixture(scope="module")
def deployments(worker: Worker) -> dict[str, UUID]:
    return worker.deployed()


@pytest.fixture
def deployment(deployments: dict[str, UUID]) -> UUID:
    return deployments["release/handoff"]


@pytest.mark.server
def test_a_delivery_that_this_machine_does_not_see_is_tried_by_others_and_then_told_with_its_name(
    worker: Worker, deployment: UUID, tmp_path: Path
) -> None:
    asked = {"parameters": {"delivery": str(tmp_path / "elsewhere")}}
    run = worker.client.create_flow_run_from_deployment(deployment, parameters=asked)
    machine = f"the machine {platform.node()}: there is no delivery at"
    for attempt in range(1, MOST_TRIES):
        now = worker.tried(run)
        assert now.state.name == "AwaitingRetry"
        assert now.state.message.startswith(machine)
        assert now.state.message.endswith(f"this was try {attempt} of {MOST_TRIES}")
    now = worker.tried(run)
    assert now.state.name == "Failed"
    assert f"DeliveryUnreachable: {machine}" in now.state.message
    # Nobody reads of a refusal, not in between and not at the end.
    assert worker.shown(run) == []


@pytest.mark.server
def test_a_refusal_is_final_and_names_no_machine(
    worker: Worker, deployment: UUID, tmp_path: Path
) -> None:
    (tmp_path / "delivery").mkdir()
    asked = {"parameters": {"delivery": str(tmp_path / "delivery")}}
    run = worker.client.create_flow_run_from_deployment(deployment, parameters=asked)
    now = worker.tried(run)
    assert now.state.name == "Failed"
    assert "DeliveryUnreadable: " in now.state.message
    assert "the machine" not in now.state.message
    (shown,) = worker.shown(run)
    assert "was not released: refused" in shown


@pytest.mark.server
def test_a_night_waits_in_its_pool_for_a_store_that_is_not_there_and_then_goes_on(
    worker: Worker, deployments: dict[str, UUID]
) -> None:
    store, seen = worker.home / "store", worker.home / "ledgers" / "seen.json"
    SeenLedgers(seen).note(str(store), "toy", (1, "sha256:0"), since=(0, ""))
    night = deployments["recompile/handoff"]
    run = worker.client.create_flow_run_from_deployment(night, parameters={})
    now = worker.tried(run)
    assert now.state.name == "AwaitingRetry"
    assert "seen in it: expected that of toy, got no ledger at all" in now.state.message
    # As a disk that is mounted again would bring it back; no ledger is read of what nobody serves.
    seen.unlink()
    assert worker.tried(run).state.name == "Completed"


@pytest.mark.parametrize("is_worker", [True, False])
def test_a_killed_step_ends_a_workers_run_and_elsewhere_is_its_targets_answer(
    is_worker: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SigningKey("none", tmp_path / "none.pub")
    stores = Stores(str(tmp_path), "")
    here = HostSettings(tmp_path, stores, key, "g++", tmp_path, "me", is_worker=is_worker)
    monkeypatch.setattr(host, "_readers", [lambda: here])
    state: Any = SimpleNamespace(context=SimpleNamespace(target=parse_target("cpu-avx2")))

    def killed(_: object) -> Any:
        raise step_killed_error("compile", tmp_path / "log")

    def crashed(_: object) -> Any:
        raise StepCrashed("it crashed", expected="a", got="SIGSEGV", remedy="look")

    record: Any = targets._run_stage(crashed, state)
    assert record.crashed
    if is_worker:
        with pytest.raises(StepKilled):
            targets._run_stage(killed, state)
    else:
        record = targets._run_stage(killed, state)
        assert record.crashed
        assert "SIGKILL" in record.reasons[0]


def test_what_a_machine_fails_for_is_told_with_its_name_and_is_still_of_its_class() -> None:
    error = attribute_to_machine(
        EnvironmentLacking("no compiler", expected="g++", got="none", remedy="install it"), "north"
    )
    assert type(error) is EnvironmentLacking
    assert str(error) == "the machine north: no compiler: expected g++, got none. Install it"


def test_a_verdict_on_a_delivery_or_a_package_is_never_a_machines() -> None:
    machines = {name for name, kind in ERRORS.items() if kind.is_machine_fault}
    assert machines == {
        "DeliveryUnreachable", "EnvironmentLacking", "KeyUnusable", "StepKilled",
        "StoreUnreachable",
    }  # fmt: skip
    assert not issubclass(StoreUnreachable, BlessingRefused)
