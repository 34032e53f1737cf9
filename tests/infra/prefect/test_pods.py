"""Pools whose runs get a pod each: made of PodTemplates, and what such a pod does."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from handoff.artifacts.errors import UsageProblem
from handoff.flows.names import BUILD_POOL, CONTROL_POOL, RELEASE
from handoff.infra.prefect.pods import read_pod_pools
from tests.infra.stack.stack_files import REPOSITORY, pod_templates
from tests.limits import LIMIT_S
from tests.prefect_server import free_port, prefect_client
from tests.served_stack import wait_until

_GPU_POOL = "handoff-cuda-sm90"
_SWEEP = "collect-garbage/handoff"


def _container(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["template"]["spec"]["containers"][0]
    return found


def _written(folder: Path, *templates: dict[str, Any]) -> Path:
    file = folder / "podtemplates.json"
    file.write_text(json.dumps({"kind": "List", "items": templates}))
    return file


def test_a_run_gets_the_pod_of_its_pools_template_and_may_have_more_of_what_that_has(
    tmp_path: Path,
) -> None:
    build, gpu = pod_templates()["build"], pod_templates()["gpu"]
    pools = read_pod_pools(_written(tmp_path, build, gpu))
    assert set(pools) == {BUILD_POOL, _GPU_POOL}
    pool = pools[_GPU_POOL]
    job = pool["job_configuration"]["job_manifest"]
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["backoffLimit"] == 0
    assert pod["nodeSelector"] == gpu["template"]["spec"]["nodeSelector"]
    defaults = {name: one.get("default") for name, one in pool["variables"]["properties"].items()}
    wanted = _container(gpu)["resources"]
    assert defaults["image"] == _container(gpu)["image"]
    assert defaults["memory_limit"] == wanted["limits"]["memory"]
    assert pod["containers"][0]["resources"]["limits"] == {
        **wanted["limits"], "cpu": "{{ cpu_limit }}", "memory": "{{ memory_limit }}",
    }  # fmt: skip
    # A template is a template still for the next deploy.
    assert _container(gpu)["image"] != "{{ image }}"


@pytest.mark.parametrize("wraps", [
    lambda build: {"kind": "PodTemplateList", "items": [{**build, "kind": "PodTemplate"}]},
    lambda build: {"kind": "PodTemplateList", "items": [without(build, "kind")]},
    lambda build: {"kind": "List", "items": [build, {"kind": "ConfigMap"}]},
    lambda build: build,
])  # fmt: skip
def test_templates_are_read_as_kubectl_and_as_the_api_lists_them(
    wraps: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps(wraps(pod_templates()["build"])))
    assert set(read_pod_pools(file)) == {BUILD_POOL}


def without(template: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a template that lacks one of its fields."""
    return {key: value for key, value in template.items() if key != name}


def _changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    template = copy.deepcopy(pod_templates()["build"])
    change(template)
    return template


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["metadata"]["labels"].clear(), "a label stack/pool with one of Handoff's"),
        (lambda t: t["metadata"]["labels"].update({"stack/pool": "mine\x1b[1m"}), r"got mine\\x1b"),
        (lambda t: t["metadata"].update(labels=[]), "got less"),
        (lambda t: t.update(template={"spec": {}}), "template.spec.containers, got less"),
        (lambda t: t.update(template=[]), "template.spec.containers, got less"),
        (lambda t: _container(t).update(name="worker"), "named prefect-job, .* got worker"),
        (lambda t: t["template"]["spec"].update(containers=[]), "named prefect-job, .* got none"),
        (lambda t: t["template"]["spec"]["containers"].append({"name": "b"}), "got prefect-job, b"),
    ],
)
def test_a_template_that_no_run_can_be_started_from_is_refused_by_its_name(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=message) as refused:
        read_pod_pools(_written(tmp_path, _changed(change)))
    assert "the PodTemplate build" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "can't be read"), ("[" * 100_000, "can't be read"), ("[]", "that is no PodTemplate"),
        ('{"kind": "Job"}', "that is no PodTemplate"), ('{"kind": "List"}', "no PodTemplate"),
        ('{"kind": "List", "items": [3]}', "there is no PodTemplate"),
        ('{"kind": "PodTemplate"}', "can't be started"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_template_is_refused(
    content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "podtemplates.json"
    file.write_text(content)
    with pytest.raises(UsageProblem, match=message):
        read_pod_pools(file)


def test_two_templates_for_one_pool_are_refused(tmp_path: Path) -> None:
    build = pod_templates()["build"]
    with pytest.raises(UsageProblem, match="one for handoff-build, got two"):
        read_pod_pools(_written(tmp_path, build, build))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that holds nothing yet."""
    with prefect_client(tmp_path_factory.mktemp("prefect")) as client:
        yield client


@pytest.fixture(scope="module")
def home(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of who has deployed with a pod for each release, and for each run that waits."""
    home = tmp_path_factory.mktemp("home")
    control = _changed(lambda t: t["metadata"]["labels"].update({"stack/pool": CONTROL_POOL}))
    control["metadata"]["name"] = "control"
    templates = pod_templates()
    file = _written(home, templates["build"], templates["gpu"], control)
    answer = _handoff(client, home, "deploy", "--pods", str(file))
    assert answer.returncode == 0, answer.stderr
    return home


def _handoff(
    client: Any, home: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff", *words],
        env={
            **os.environ, "PREFECT_API_URL": str(client.api_url).rstrip("/"),
            "HANDOFF_HOME": str(home), **variables,
        },
        capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.server
def test_a_pool_that_is_deployed_with_pods_keeps_them_and_takes_no_worker_of_ours(
    client: Any, home: Path, tmp_path: Path
) -> None:
    pool = client.read_work_pool(BUILD_POOL)
    assert pool.type == "kubernetes"
    release = client.read_deployment_by_name(RELEASE)
    # The pod knows what to start: a command would be this machine's.
    assert (release.work_pool_name, release.job_variables) == (BUILD_POOL, {})
    # The pool of a GPU, without its being named as a target.
    assert client.read_deployment_by_name("build-target/cuda-sm90").work_pool_name == _GPU_POOL

    again = _handoff(client, home, "deploy")
    assert again.returncode == 0, again.stderr
    assert client.read_work_pool(BUILD_POOL).base_job_template == pool.base_job_template
    assert client.read_deployment_by_name(RELEASE).job_variables == {}

    newer = _changed(lambda t: _container(t).update(image="registry.example/handoff-worker:9"))
    answer = _handoff(client, home, "deploy", "--pods", str(_written(tmp_path, newer)))
    assert answer.returncode == 0, answer.stderr
    held = client.read_work_pool(BUILD_POOL).base_job_template
    assert held["variables"]["properties"]["image"]["default"].endswith("/handoff-worker:9")

    refused = _handoff(client, home, "worker", "--pool", BUILD_POOL)
    assert refused.returncode == 64, refused.stderr
    assert "each run of handoff-build gets a pod of its own" in refused.stderr
    assert "prefect worker start --type kubernetes --pool handoff-build" in refused.stderr


@pytest.mark.server
def test_a_pod_has_an_hour_to_begin_and_a_process_five_minutes(client: Any, home: Path) -> None:
    from prefect.events.filters import EventFilter, EventNameFilter
    from prefect.states import Cancelled

    assert home
    automations = {one.name.removeprefix("handoff: "): one for one in client.read_automations()}
    limits = {
        name: automations[f"end {name} that never began"].trigger for name in ("runs", "pods")
    }
    assert {n: one.within.total_seconds() for n, one in limits.items()} == {
        "runs": 300, "pods": 3600,
    }  # fmt: skip
    asked_for = _asked_for(client)
    named = EventFilter(event=EventNameFilter(name=["prefect.flow-run.Pending"]))
    wanted = {"prefect.resource.role": "work-pool", "prefect.work-pool.type": "kubernetes"}

    def matches_trigger() -> bool:
        """Return whether the run's event has what the trigger asks for."""
        return any(
            wanted.items() <= related.model_dump().items()
            for event in client.read_events(filter=named, limit=50).events
            if event.resource.id == f"prefect.flow-run.{asked_for.id}"
            for related in event.related
        )

    wait_until("the event is there", matches_trigger, 60)
    # One runs at a time: the next test's would wait for it.
    client.set_flow_run_state(asked_for.id, Cancelled())
    assert wanted in [one.model_dump() for one in limits["pods"].match_related]
    others = [one.model_dump() for one in limits["runs"].match_related]
    assert {**wanted, "prefect.work-pool.type": "!kubernetes"} in others


@pytest.mark.server
@pytest.mark.long
def test_a_pool_of_workers_is_not_made_one_of_pods(home: Path, tmp_path: Path) -> None:
    with prefect_client(tmp_path / "prefect") as other:
        assert _handoff(other, home, "deploy").returncode == 0
        file = _written(tmp_path, pod_templates()["build"])
        refused = _handoff(other, home, "deploy", "--pods", str(file))
        assert refused.returncode == 64, refused.stderr
        assert "prefect work-pool delete handoff-build" in refused.stderr
        # And what it says, helps.
        other.delete_work_pool(BUILD_POOL)
        answer = _handoff(other, home, "deploy", "--pods", str(file))
        assert answer.returncode == 0, answer.stderr
        assert other.read_work_pool(BUILD_POOL).type == "kubernetes"
        assert other.read_deployment_by_name(RELEASE).work_pool_name == BUILD_POOL


def _asked_for(client: Any) -> Any:
    """Return a run that Prefect's Kubernetes worker has made a pod for."""
    from prefect.states import Pending

    deployment = client.read_deployment_by_name(_SWEEP)
    run = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(run.id, Pending())
    return run


@pytest.mark.server
def test_a_pod_that_lacks_something_is_reported_until_one_carries_out_its_run_and_a_late_one_rests(
    client: Any, home: Path, tmp_path: Path
) -> None:
    from handoff.infra.prefect.absences import read_absences

    run = _asked_for(client)
    named = {"PREFECT__FLOW_RUN_ID": str(run.id), "HANDOFF_STORE": str(tmp_path / "store")}
    words = ("worker", "--pool", CONTROL_POOL, "--one-run")
    nobody = f"http://127.0.0.1:{free_port()}"
    refused = _handoff(client, home, *words, **named, MLFLOW_TRACKING_URI=nobody)
    assert refused.returncode == 1, refused.stderr
    assert f"no MLflow answers at {nobody}" in refused.stderr
    assert client.read_flow_run(run.id).state.is_pending()
    (absence,) = read_absences(client)
    assert (absence.pool, absence.worker) == (CONTROL_POOL, "pods")

    first = _handoff(client, home, *words, **named)
    assert first.returncode == 0, first.stderr
    assert "store:" in first.stderr
    assert read_absences(client) == []
    ended = client.read_flow_run(run.id)
    assert ended.state.is_completed(), ended.state
    # Its page has what its flow says: nothing that the checks set for Prefect here is left.
    said = [line.message for line in client.read_logs() if line.flow_run_id == run.id]
    assert any("Finished in state Completed" in line for line in said), said

    late = _handoff(client, home, *words, **named)
    assert late.returncode == 0, late.stderr
    assert f"{run.id} has ended, and nothing is left to do for it" in late.stderr
    assert client.read_flow_run(run.id).state.timestamp == ended.state.timestamp


@contextmanager
def _pod_with_a_long_run(client: Any, home: Path) -> Iterator[tuple[subprocess.Popen[str], UUID]]:
    """Give the process of a pod and the run that it carries out, which has begun."""
    from prefect.states import Pending

    deployment = client.create_deployment(
        flow_id=client.create_flow_from_name("sleeping"), name="long",
        entrypoint="tests.infra.prefect.sleeping.sleep_long", work_pool_name=CONTROL_POOL,
    )  # fmt: skip
    run = client.create_flow_run_from_deployment(deployment).id
    client.set_flow_run_state(run, Pending())
    environment = {
        **os.environ, "PREFECT_API_URL": str(client.api_url).rstrip("/"),
        "HANDOFF_HOME": str(home), "HANDOFF_STORE": str(home / "store"),
        "PREFECT__FLOW_RUN_ID": str(run), "PYTHONPATH": str(REPOSITORY),
        "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "5",
    }  # fmt: skip
    command = [sys.executable, "-m", "handoff", "worker", "--pool", CONTROL_POOL, "--one-run"]
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as pod:
        try:
            wait_until("it runs", lambda: bool(client.read_flow_run(run).state.is_running()))
            yield pod, run
        finally:
            pod.kill()


@pytest.mark.server
def test_a_run_that_is_cancelled_ends_in_its_pod(client: Any, home: Path) -> None:
    from prefect.states import Cancelling

    with _pod_with_a_long_run(client, home) as (pod, run):
        client.set_flow_run_state(run, Cancelling())
        pod.wait(90)
        wait_until("it is cancelled", lambda: bool(client.read_flow_run(run).state.is_cancelled()))


@pytest.mark.server
def test_a_pod_that_is_asked_to_end_says_that_its_run_crashed(client: Any, home: Path) -> None:
    with _pod_with_a_long_run(client, home) as (pod, run):
        pod.send_signal(signal.SIGTERM)
        pod.wait(60)
        state = client.read_flow_run(run).state
        assert state.is_crashed(), state


@pytest.mark.parametrize("named", [{}, {"PREFECT__FLOW_RUN_ID": "mine"}])
def test_outside_of_a_pod_one_run_is_refused(named: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "handoff", "worker", "--one-run"]
    environment = {**os.environ, "HANDOFF_HOME": str(tmp_path), **named}
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert answer.returncode == 64
    assert "Leave --one-run out" in answer.stderr
