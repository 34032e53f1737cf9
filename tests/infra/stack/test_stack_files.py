"""The stack's files: what each container may do, and what it is started from."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from handoff.artifacts.recipe.target import TARGETS
from handoff.artifacts.version import own_version
from tests.infra.stack.stack_files import (
    MANIFESTS,
    REPOSITORY,
    STACK,
    Container,
    compose,
    containers,
    filled_in,
    manifests,
    services,
)

_SERVICES = services()
_CONTAINERS = list(containers())
_ONE_SHOTS = {"databases", "bucket", "mlflow-user", "deploy", "deploy-gpu"}
_POOLS = {"handoff-control", "handoff-build", *(f"handoff-{slug}" for slug in TARGETS)}


def test_images_are_pinned_and_never_the_latest() -> None:
    images = [service["image"] for service in _SERVICES.values()]
    ours = {"handoff-server", "handoff-worker"}
    images += [c.spec["image"] for c in _CONTAINERS if c.spec["image"] not in ours]
    for file in (STACK / "images").glob("*.Dockerfile"):
        images += re.findall(r"(?m)^ARG BASE=(.+)$", file.read_text("utf-8"))
        assert "latest" not in file.read_text("utf-8")
    for image in images:
        tag = image.rpartition(":")[2]
        assert re.search(r"\d+\.\d+|RELEASE\.\d", tag), f"{image} is not pinned"
    place = MANIFESTS / "components" / "images" / "kustomization.yaml"
    ours_there = next(o for p, o in manifests() if p == place)
    tags = {(image["name"], image["newTag"]) for image in ours_there["images"]}
    assert {f"{name}:{tag}" for name, tag in tags} == {i for i in images if i.startswith("handoff")}
    assert {tag for _, tag in tags} == {own_version()}


def test_what_the_worker_is_built_from_installs_as_the_package(tmp_path: Path) -> None:
    context, image = tmp_path / "context", tmp_path / "image"
    context.mkdir()
    image.mkdir()
    for line in (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines():
        if line.startswith("!"):
            copy_in(REPOSITORY / line[1:], context)
    build = (STACK / "images" / "worker.Dockerfile").read_text("utf-8")
    for copied in re.findall(r"(?m)^COPY (?!\$)(.+) \S+$", build):
        for name in copied.split():
            if not name.endswith(".lock"):
                copy_in(context / name, image)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--hooks-only"]
    ended = subprocess.run(command, cwd=image, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (image / "handoff" / "infra" / "cli" / "main.py").is_file()


def copy_in(source: Path, folder: Path) -> None:
    """Copy a file or a folder into `folder`, links as links, as an image's builder does."""
    if source.is_dir():
        shutil.copytree(source, folder / source.name, symlinks=True)
    else:
        shutil.copy(source, folder)


@pytest.mark.parametrize(
    "name", [".env", "secrets/signing.pem", "secrets/trusted/a.pub", "kubernetes/base/keys.env"]
)
def test_what_is_secret_is_ignored_by_git(name: str) -> None:
    command = ["git", "-C", str(REPOSITORY), "check-ignore", "--quiet", str(STACK / name)]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("name", _SERVICES)
def test_a_service_of_compose_may_do_no_more_than_it_must(name: str) -> None:
    service = _SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service.get("cap_add", ())) <= {
        "CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID", "NET_BIND_SERVICE",
    }  # fmt: skip
    assert "privileged" not in service
    limits = service["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= set(limits)
    assert service["logging"]["options"]["max-size"]
    if name in _ONE_SHOTS:
        assert service["restart"].startswith("on-failure")
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("container", _CONTAINERS, ids=lambda c: c.place)
def test_a_container_of_a_manifest_may_do_no_more_than_it_must(container: Container) -> None:
    spec, pod = container.spec, container.pod
    assert spec["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # What makes Jobs asks the cluster, and nothing else is let in there.
    is_let_in = spec["name"] == "dispatch"
    assert pod.get("automountServiceAccountToken", False) is is_let_in
    assert {"cpu", "memory"} <= set(spec["resources"]["requests"])
    assert {"cpu", "memory"} <= set(spec["resources"]["limits"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    if not container.is_init and container.kind not in ("Job", "PodTemplate"):
        assert {"startupProbe", "readinessProbe"} <= set(spec)
        is_worker = spec["image"] == "handoff-worker"
        assert ("livenessProbe" in spec) != is_worker, "a worker's would kill its compile"


def test_every_pod_is_selected_by_the_policy_that_denies_and_postgres_by_few() -> None:
    policies = {
        o["metadata"]["name"]: o["spec"] for _, o in manifests() if o["kind"] == "NetworkPolicy"
    }
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    sources = policies["postgres"]["ingress"][0]["from"]
    assert sources == [{"podSelector": {"matchLabels": {"stack/database-client": "true"}}}]
    clients = {
        o["metadata"]["name"] for _, o in manifests()
        if "stack/database-client" in o.get("spec", {}).get("template", {})
        .get("metadata", {}).get("labels", {})
    }  # fmt: skip
    assert clients == {"prefect", "mlflow"}


def test_ports_are_published_on_loopback_alone() -> None:
    # The front with TLS is for other hosts.
    inner = [service for name, service in _SERVICES.items() if name != "tls"]
    published = [port for service in inner for port in service.get("ports", ())]
    assert len(published) >= 4
    assert all(str(port).startswith("127.0.0.1:") for port in published)
    assert compose()["networks"]["data"]["internal"] is True
    assert _SERVICES["postgres"]["networks"] == ["data"]
    assert all("network_mode" not in service for service in _SERVICES.values())
    within = [content["spec"] for _, content in manifests() if content["kind"] == "Service"]
    assert len(within) >= 6
    assert all("type" not in spec for spec in within)


def test_a_worker_finds_its_home_again_and_shares_it_with_no_other() -> None:
    second = yaml.safe_load((STACK / "compose.build-2.yaml").read_text("utf-8"))
    workers = {**_SERVICES, **second["services"]}
    held: dict[str, list[str]] = {}
    for name, service in workers.items():
        for volume in service.get("volumes", ()):
            if isinstance(volume, str):
                held.setdefault(volume.partition(":")[0], []).append(name)
            else:
                assert volume["type"] == "bind", f"{name} loses {volume} at each start"
    assert set(held) == {*compose()["volumes"], *second["volumes"]}
    assert {volume: names for volume, names in held.items() if len(names) > 1} == {}
    assert {"control-home", "build-home", "build-2-home", "build-scratch"} <= set(held)


def test_no_service_asks_for_more_cores_than_two_unless_it_is_told_to() -> None:
    for name, service in _SERVICES.items():
        cores = service["deploy"]["resources"]["limits"]["cpus"]
        assert float(filled_in(cores, {})) <= 2, name
    build = _SERVICES["build"]["deploy"]["resources"]["limits"]["cpus"]
    assert filled_in(build, {"BUILD_CPUS": "16"}) == "16"


def test_servers_that_listen_beyond_loopback_have_a_login() -> None:
    prefect, mlflow = _SERVICES["prefect"], _SERVICES["mlflow"]
    assert "0.0.0.0" in prefect["command"]
    assert prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING"].startswith("handoff:${PREFECT_")
    assert {"--host=0.0.0.0", "--app-name=basic-auth"} <= set(mlflow["command"])
    assert ":?" in mlflow["environment"]["MLFLOW_AUTH_ADMIN_PASSWORD"]


def _pools_named(words: list[Any]) -> set[str]:
    return {str(after) for word, after in itertools.pairwise(words) if word == "--pool"}


def test_every_pool_is_one_of_ours_and_asked_for_by_its_own_probe() -> None:
    seen: set[str] = set()
    for service in _SERVICES.values():
        words = [filled_in(str(w), {"GPU_TARGET": "cuda-sm90"}) for w in service.get("command", ())]
        for pool in _pools_named(words):
            test = [filled_in(w, {}) for w in service["healthcheck"]["test"]]
            assert test[-2:] == ["pool", pool]
            seen.add(pool)
    for container in _CONTAINERS:
        for pool in _pools_named(container.spec.get("args", [])):
            if container.kind == "PodTemplate":
                assert container.labels == {"stack/pool": pool}
                continue
            for probe in ("startupProbe", "readinessProbe"):
                assert container.spec[probe]["exec"]["command"][-2:] == ["pool", pool]
            seen.add(pool)
    assert seen == {"handoff-control", "handoff-build", "handoff-cuda-sm90"}
    assert seen <= _POOLS


def test_a_worker_is_let_finish_before_it_is_told_to_end() -> None:
    workers = [c for c in _CONTAINERS if "--limit" in c.spec.get("args", ())]
    assert len(workers) == 3
    for worker in workers:
        waits = worker.spec["lifecycle"]["preStop"]["exec"]["command"]
        assert waits[-2] == "drained"
        assert worker.pod["terminationGracePeriodSeconds"] > int(waits[-1])
        volumes = {volume["name"]: volume for volume in worker.pod["volumes"]}
        assert "medium" not in volumes["scratch"]["emptyDir"]


def test_a_target_with_a_worker_of_its_own_is_deployed_with_a_pool_of_its_own() -> None:
    gpu, deploy = _SERVICES["gpu"], _SERVICES["deploy-gpu"]
    assert gpu["depends_on"]["deploy-gpu"] == {"condition": "service_completed_successfully"}
    assert gpu["profiles"] == deploy["profiles"] == ["gpu"]
    target = filled_in(deploy["command"][-1], {"GPU_TARGET": "cuda-sm80"})
    pool = filled_in(gpu["command"][2], {"GPU_TARGET": "cuda-sm80"})
    assert (deploy["command"][-2], f"handoff-{target}") == ("--target", pool)
    component = MANIFESTS / "components" / "gpu"
    patch = next(o for p, o in manifests() if p == component / "kustomization.yaml")
    job = yaml.safe_load(patch["patches"][0]["patch"])
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    worker = next(c for c in _CONTAINERS if c.place == "StatefulSet/gpu/worker")
    assert f"handoff-{arguments[-1]}" == worker.spec["args"][2]


def test_the_commands_of_our_image_are_commands_of_handoff() -> None:
    from handoff.infra.cli.main import main

    commands = [s["command"] for s in _SERVICES.values() if s["image"].startswith("handoff-worker")]
    commands += [c.spec["args"] for c in _CONTAINERS if c.spec["image"] == "handoff-worker"]
    assert len(commands) >= 9
    for words in commands:
        command = main.commands[words[0]]
        options = {name for option in command.params for name in option.opts}
        assert {word for word in words[1:] if word.startswith("--")} <= options


def test_a_worker_that_compiles_has_one_flow_run_and_no_more_threads_than_cores() -> None:
    for name in ("build", "gpu", "control"):
        service = _SERVICES[name]
        cores = service["deploy"]["resources"]["limits"]["cpus"]
        assert service["environment"]["OMP_NUM_THREADS"] == cores
        if name != "control":
            assert service["command"][-2:] == ["--limit", "1"]
    workers = [
        c for c in _CONTAINERS
        if c.spec["image"] == "handoff-worker" and "--pool" in c.spec.get("args", ())
    ]  # fmt: skip
    assert len(workers) == 5
    for worker in workers:
        source = worker.environment["OMP_NUM_THREADS"]["resourceFieldRef"]
        assert source == {"containerName": worker.spec["name"], "resource": "limits.cpu"}


def test_only_workers_that_sign_are_given_the_key() -> None:
    holders = {name: service["secrets"] for name, service in _SERVICES.items()
               if service.get("secrets")}  # fmt: skip
    keyed_services = {name for name, secrets in holders.items() if "signing-key" in secrets}
    assert keyed_services == {"control", "build"}
    assert {name: one for name, one in holders.items() if name not in keyed_services} == {
        "tell": ["forge-token"]
    }
    keyed = {
        c.place for c in _CONTAINERS
        if any("handoff-signing-key" in str(volume) for volume in c.pod.get("volumes", ()))
    }  # fmt: skip
    assert keyed == {
        "StatefulSet/control/worker", "StatefulSet/build/worker", "PodTemplate/build/prefect-job"
    }  # fmt: skip


def test_a_pod_for_one_run_is_what_a_worker_for_many_is() -> None:
    by_place = {c.place: c for c in _CONTAINERS}
    for name in ("build", "gpu"):
        pod = by_place[f"PodTemplate/{name}/prefect-job"]
        worker = by_place[f"StatefulSet/{name}/worker"]
        assert pod.spec["args"][:3] == worker.spec["args"][:3]
        for key in ("image", "envFrom", "securityContext", "resources"):
            assert pod.spec[key] == worker.spec[key]
        both = [{**c.environment, "OMP_NUM_THREADS": ""} for c in (pod, worker)]
        assert both[0] == both[1]
        for key in ("securityContext", "serviceAccountName", "nodeSelector", "tolerations"):
            assert pod.pod.get(key) == worker.pod.get(key)
        mounted = {mount["name"] for mount in pod.spec["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod.pod["volumes"]}


def test_the_images_locks_pin_what_the_products_lock_pins() -> None:
    def read(path: Path) -> dict[str, str]:
        return dict(re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^ ;]+)", path.read_text("utf-8")))

    product, servers = read(REPOSITORY / "requirements.lock"), read(STACK / "images/server.lock")
    assert {"prefect", "mlflow", "flask-wtf", "psycopg2-binary", "boto3"} <= set(servers)
    assert not {n: v for n, v in servers.items() if n in product and product[n] != v}
    for lock in ("images/server.lock", "images/build.lock", "tools.lock"):
        entries = re.split(r"(?m)^(?=[a-z])", (STACK / lock).read_text("utf-8"))
        assert all("--hash=sha256:" in entry for entry in entries if entry.strip())
