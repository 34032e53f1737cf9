"""The tools that judge the stack's files, by `infra/containers/check.sh`; and that they find
faults."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from handoff.infra.prefect.pods import read_pod_pools
from tests.infra.stack.stack_files import MANIFESTS, NO_TOOLS, STACK, TOOLS, pod_templates
from tests.limits import LIMIT_S

pytestmark = pytest.mark.skipif(not (TOOLS / "hadolint").exists(), reason=NO_TOOLS)


def _check(stack: Path, tools: Path = TOOLS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(stack / "check.sh"), str(tools)], capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip


def _copy(to: Path) -> Path:
    return Path(shutil.copytree(STACK, to / "stack"))


def test_every_tool_that_is_here_is_content_with_every_file() -> None:
    done = _check(STACK)
    assert done.returncode == 0, done.stdout
    assert "FAILED" not in done.stdout
    passed = {line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("ok")}
    overlays = {path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml")}
    assert overlays >= {"minio", "aws", "gpu", "pods", "pods-gpu", "public"}
    assert passed >= {
        "hadolint server.Dockerfile", "hadolint worker.Dockerfile", "docker-compose config",
        "docker-compose config, profile gpu", "docker-compose refuses to go without secrets",
        *(f"kubectl kustomize {name}" for name in overlays),
        *(f"kubernetes-validate --strict {name}" for name in overlays),
    }  # fmt: skip


def _pods_of(overlay: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the specs of the pods that an overlay makes, by what makes them."""
    command = [str(TOOLS / "kubectl"), "kustomize", str(MANIFESTS / "overlays" / overlay)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    pods = []
    for made in yaml.safe_load_all(rendered.stdout):
        about = made.get("template") or made.get("spec", {}).get("template")
        if about:
            pods.append((f"{made['kind']}/{made['metadata']['name']}", about["spec"]))
    return pods


@pytest.mark.parametrize("overlay", ["aws", "gpu", "minio", "pods", "pods-gpu", "public"])
def test_every_container_that_an_overlay_makes_is_pinned_and_may_do_little(overlay: str) -> None:
    pods = _pods_of(overlay)
    assert len(pods) >= 5
    for place, pod in pods:
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            image, label = container["image"], f"{place}/{container['name']}"
            assert ":" in image.rpartition("/")[2], f"{label} is of whatever {image} is"
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, label
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, label
            is_asking = any(
                mount["mountPath"].startswith("/var/run/secrets/kubernetes.io")
                for mount in container.get("volumeMounts", ())
            )
            assert is_asking == (container["name"] == "podtemplates"), label


def test_with_a_pod_for_each_release_no_worker_waits_for_one() -> None:
    made = {place for place, _ in _pods_of("pods-gpu")}
    assert {"PodTemplate/build", "PodTemplate/gpu", "Deployment/dispatch"} <= made
    assert "StatefulSet/control" in made
    assert not {"StatefulSet/build", "StatefulSet/gpu"} & made
    job = next(pod for place, pod in _pods_of("pods-gpu") if place == "Job/deploy")
    (written,) = (
        one["command"][-1] for one in job["initContainers"] if one["name"] == "podtemplates"
    )
    assert job["containers"][0]["args"] == ["deploy", "--pods", written]


def test_what_makes_pods_watches_the_namespace_that_it_is_given(tmp_path: Path) -> None:
    code = (
        "from prefect_kubernetes.settings import KubernetesSettings; "
        "print(KubernetesSettings().observer.namespaces)"
    )
    name = "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"
    done = subprocess.run(
        [str(TOOLS / "python"), "-c", code],
        env={"HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path), name: "handoff"},
        capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.stdout.strip() == "{'handoff'}"


_RENDER = """
import asyncio, json, sys, uuid
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

async def main():
    template, chosen = json.load(sys.stdin)
    made = await KubernetesWorkerJobConfiguration.from_template_and_values(template, chosen)
    made.prepare_for_flow_run(FlowRun(flow_id=uuid.uuid4(), name="toy 1a2b"))
    print(json.dumps(made.job_manifest))

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["build", "gpu"])
def test_prefects_own_worker_makes_a_job_of_a_pool_and_writes_no_login_into_it(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "podtemplates.json"
    file.write_text(json.dumps(pod_templates()[name]))
    ((pool, template),) = read_pod_pools(file).items()
    done = subprocess.run(
        [str(TOOLS / "python"), "-c", _RENDER],
        input=json.dumps([template, {"memory_limit": "96Gi"}]),
        env={
            "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path),
            "PREFECT_API_URL": "http://prefect:4200/api",
            "PREFECT_API_AUTH_STRING": "handoff:of-the-worker",
        },
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["worker", "--pool", pool, "--one-run"]
    assert container["resources"]["limits"]["memory"] == "96Gi"
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["PREFECT_API_AUTH_STRING"] == "handoff:$(PREFECT_PASSWORD)"
    assert variables["PREFECT_API_URL"] == "http://prefect:4200/api"
    assert variables["PREFECT__FLOW_RUN_ID"]
    assert "of-the-worker" not in done.stdout
    # What Prefect asks for there, and Kubernetes leaves out.
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    job["metadata"]["name"] = job["metadata"].pop("generateName") + "x"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    validate = [str(TOOLS / "kubernetes-validate"), "--strict", str(tmp_path / "job.yaml")]
    checked = subprocess.run(validate, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "tool"),
    [
        ("images/server.Dockerfile", "slim-bookworm\nFROM ${BASE}", "x\nFROM python:latest",
         "hadolint server.Dockerfile"),
        ("compose.yaml", "restart: unless-stopped", "restarts: unless-stopped",
         "docker-compose config"),
        ("compose.yaml", "mlflow: {condition: service_he", "mlfow: {condition: service_he",
         "docker-compose config"),
        ("compose.yaml", "${S3_USER:?see .env.example}", "${S3_USER:-handoff}", ""),
        ("kubernetes/base/build.yaml", "readOnlyRootFilesystem", "readOnlyRoot",
         "kubernetes-validate --strict minio"),
        ("kubernetes/overlays/aws/no-keys-mlflow.yaml", "metadata: {name: mlflow}",
         "metadata: {nome: mlflow}", "kubectl kustomize aws"),
    ],
)  # fmt: skip
def test_a_fault_is_found_and_named(
    file: str, old: str, new: str, tool: str, tmp_path: Path
) -> None:
    stack = _copy(tmp_path)
    text = (stack / file).read_text("utf-8")
    assert old in text
    (stack / file).write_text(text.replace(old, new), "utf-8")
    done = _check(stack)
    if tool:
        assert done.returncode == 1, done.stdout
        assert f"FAILED   {tool}" in done.stdout
    else:  # another secret is still required
        assert "ok       docker-compose refuses" in done.stdout


def test_what_was_not_asked_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(STACK / "check.sh"), str(tmp_path)], env={"PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert "NOT RUN  the Dockerfiles (no hadolint here" in done.stdout
    assert "NOT RUN  compose.yaml (no docker-compose here" in done.stdout
    assert done.returncode == 0
