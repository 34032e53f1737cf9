"""Targets that are built in a pool of their own: what comes back, and what is found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.manifest import ANSWER_FILE, TargetAnswer, TargetRecord
from handoff.flows.children import ChildRun, start
from handoff.flows.parameters import BuildTargetParameters, VerifyParameters
from handoff.flows.target import remote_targets
from handoff.flows.target.remote_targets import collect_targets, find_routes, format_answer
from handoff.infra.prefect.pools import ensure_pools
from handoff.tasks.registry.target_record import BuiltTargets
from tests.prefect_server import prefect_client

pytestmark = pytest.mark.server
SLUG = "cuda-sm90"
DELIVERY, PARTS = digest_bytes(b"delivery"), digest_bytes(b"parts")
PLAN = str(digest_bytes(b"plan"))
OWN = BuiltTargets((), {"torch": "here"}, PLAN)
ACCEPTED = TargetRecord(SLUG, accepted=True, reasons=(), files=(), fit=None)
REFUSED = replace(ACCEPTED, accepted=False, reasons=("outside the tolerance",))
UNVERIFIED = replace(ACCEPTED, accepted=False, unverified="nothing was run")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, UUID]]:
    """A client of a server, and a deployment whose runs the tests end themselves."""
    with prefect_client(tmp_path_factory.mktemp("prefect")) as client:
        flow = client.create_flow_from_name("build-target")
        yield client, client.create_deployment(flow, SLUG, entrypoint="none.flow")


@dataclass
class Asking:
    """A release that has asked for one target, and the pool that answers."""

    client: Any
    deployment: UUID
    release: Path
    key: str = field(default_factory=lambda: str(uuid4()))

    def ask(self) -> Any:
        """Start the target's run, or find it."""
        return start(self.client, ChildRun(self.deployment, self.key, {}))

    def end(self, run: Any, state: str, message: str) -> None:
        """Let the pool's worker end the run."""
        from prefect import states

        self.client.set_flow_run_state(run.id, getattr(states, state)(message=message), force=True)

    def answer(self, run: Any) -> None:
        """Let the pool's worker answer."""
        self.end(run, "Completed", format_answer("small", "…", PARTS))

    def collect(self, run: Any) -> BuiltTargets:
        """Collect as a release does."""
        processes: Any = SimpleNamespace(
            registrar=lambda: None,
            jobs=SimpleNamespace(
                workspace=self.release.parent / str(uuid4()), release=self.release
            ),
        )
        wanted: Any = SimpleNamespace(
            host=SimpleNamespace(stores=None), recipe=Recipe(targets=(SLUG,))
        )
        return collect_targets(processes, wanted, {SLUG: run}, DELIVERY, OWN)


@pytest.fixture
def asking(server: tuple[Any, UUID], tmp_path: Path) -> Asking:
    """A release whose target nobody has asked for before."""
    return Asking(*server, tmp_path / "release")


def sends(monkeypatch: pytest.MonkeyPatch, record: TargetRecord, **given: Any) -> None:
    """Let the store hold an answer, and one package beside it."""
    answer = replace(TargetAnswer(record, {"torch": "there"}, PLAN, DELIVERY), **given)

    def receive(_: object, job: Any) -> None:
        assert job.parts == PARTS
        (job.folder / SLUG).mkdir(parents=True)
        (job.folder / SLUG / "model.pt2").write_bytes(b"package")
        (job.folder / ANSWER_FILE).write_text(json.dumps(to_plain(answer)), encoding="utf-8")

    monkeypatch.setattr(remote_targets, "receive", receive)


@pytest.mark.parametrize("record", [ACCEPTED, UNVERIFIED], ids=["accepted", "unverified"])
def test_a_package_becomes_part_of_the_release_and_is_found_again(
    record: TargetRecord, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(monkeypatch, record)
    run = asking.ask()
    asking.answer(run)
    for _ in range(2):
        built = asking.collect(run)
        assert built.records == (record,)
        assert built.toolchain == {"torch": "here", f"{SLUG}: torch": "there"}
        assert (asking.release / SLUG / "model.pt2").read_bytes() == b"package"
        assert asking.ask().id == run.id


def test_a_refusal_is_told_and_the_next_release_of_the_same_asks_again(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(monkeypatch, REFUSED)
    run = asking.ask()
    asking.answer(run)
    assert asking.collect(run).records == (REFUSED,)
    assert asking.ask().id != run.id
    # One that waited for the same run beside this release gets the same answer.
    assert asking.collect(run).records == (REFUSED,)


@pytest.mark.parametrize(
    "given",
    [{"delivery": digest_bytes(b"another")}, {"plan": str(digest_bytes(b"another"))},
     {"record": replace(ACCEPTED, slug="cuda-sm80")}],
    ids=["delivery", "plan", "target"],
)  # fmt: skip
def test_an_answer_about_something_else_is_refused_and_asked_for_again(
    given: dict[str, Any], asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(monkeypatch, **{"record": ACCEPTED, **given})
    run = asking.ask()
    asking.answer(run)
    (record,) = asking.collect(run).records
    assert (record.slug, record.verdict, record.crashed) == (SLUG, "refused", True)
    assert "is something else" in record.reasons[0]
    assert asking.ask().id != run.id


def test_an_answer_that_the_store_has_lost_fails_the_release_and_is_asked_for_again(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(*_: object) -> None:
        raise StoreFailed("the store lacks an object", expected="it", got="none", remedy="Look")

    monkeypatch.setattr(remote_targets, "receive", receive)
    run = asking.ask()
    asking.answer(run)
    with pytest.raises(StoreFailed, match="lacks an object"):
        asking.collect(run)
    assert asking.ask().id != run.id


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("killed", "Failed: killed"),
        (f"expected {PARTS}, got {DELIVERY}", f"Failed: {DELIVERY} instead of {PARTS}"),
    ],
)
def test_a_run_that_fails_is_its_targets_refusal_with_what_it_said(
    message: str, reason: str, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(monkeypatch, ACCEPTED)
    run = asking.ask()
    asking.end(run, "Failed", message)
    (record,) = asking.collect(run).records
    assert (record.verdict, record.crashed) == ("refused", True)
    assert reason in record.reasons[0]
    assert asking.ask().id != run.id


def test_a_target_for_several_gpus_is_built_where_one_of_them_is(
    server: tuple[Any, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = server
    monkeypatch.setattr(remote_targets, "get_client", lambda **_: nullcontext(client))
    recipe = Recipe(targets=("cpu-avx2", "cuda-sm86+sm90+sm100"))
    pool = "handoff-cuda-sm100"
    ensure_pools(client, [pool])
    flow = client.create_flow_from_name("build-target")
    made = client.create_deployment(flow, "cuda-sm100", entrypoint="none.flow", work_pool_name=pool)
    found = find_routes(recipe)
    assert not found.routes
    (note,) = found.notes
    pools = "handoff-cuda-sm86 or handoff-cuda-sm90 or handoff-cuda-sm100"
    assert note.startswith(f"cuda-sm86+sm90+sm100: no worker of a pool {pools} is online, so that")
    client.send_worker_heartbeat(pool, "gpu", heartbeat_interval_seconds=600)
    found = find_routes(recipe)
    assert (found.routes, found.notes) == ({"cuda-sm86+sm90+sm100": made}, ())


def test_a_run_may_be_asked_for_a_target_for_several_gpus() -> None:
    asked = BuildTargetParameters(
        delivery=str(DELIVERY), target="cuda-sm80+sm90", recipe=to_plain(Recipe())
    )
    assert asked.target == "cuda-sm80+sm90"
    checked = VerifyParameters(model="toy", version=1, target="cuda-sm80+sm90")
    assert checked.label == "toy@1 on cuda-sm80+sm90"
    with pytest.raises(ValueError, match="String should match pattern"):
        VerifyParameters(model="toy", version=1, target="cuda-sm80/sm90")
