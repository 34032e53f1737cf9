"""What the stack's containers are given: what is read, the same everywhere, and no secret."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from handoff.infra import settings
from handoff.infra.containers import prepare
from tests.infra.stack.stack_files import (
    REPOSITORY,
    STACK,
    Container,
    containers,
    filled_in,
    manifests,
    services,
    variables,
)

_SERVICES = services()
_CONTAINERS = list(containers())
# Of the images that aren't ours, from their own documentation: no test here can run them.
_FOREIGN = {
    "POSTGRES_PASSWORD", "POSTGRES_INITDB_ARGS", "PGDATA",
    "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "MINIO_UPDATE", "NVIDIA_DRIVER_CAPABILITIES",
}  # fmt: skip
_LIBPQ = {"PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE"}
_AWS = {"AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
# Read by everybody's libraries: threads, the time zone, a wish that Prefect and MLflow respect.
_LIBRARIES = {"OMP_NUM_THREADS", "DO_NOT_TRACK", "TZ"}
# Of prefect-kubernetes, which is in the servers' image alone (test_stack_tools.py asks it).
_OF_DISPATCH = {"PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"}
# Caddy's by our own file.
_OF_CADDY = set(re.findall(r"\{\$(\w+)\}", (STACK / "Caddyfile").read_text("utf-8")))
_SECRET = re.compile(r"PASSWORD|SECRET|AUTH_STRING|ACCESS_KEY_ID|ROOT_USER|SIGNING_KEY$")


def _text_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", str(STACK)],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [REPOSITORY / line for line in listed.stdout.splitlines()]


def _is_known(name: str) -> bool:
    """Return whether the program that gets this variable reads it."""
    import mlflow.environment_variables
    import prefect.settings
    from mlflow.cli import server

    known = prepare.SETTINGS | _FOREIGN | _LIBPQ | _AWS | _LIBRARIES | _OF_CADDY | _OF_DISPATCH
    if name in known:
        return True
    if name.startswith("PREFECT_"):
        return hasattr(prefect.settings, name)
    if name.startswith("MLFLOW_"):
        options = {option.envvar for option in server.params if isinstance(option.envvar, str)}
        return name in options or hasattr(mlflow.environment_variables, name)
    documented = settings.__doc__ or ""
    return name.startswith("HANDOFF_") and f"`{name}`" in documented


def test_a_variable_that_no_program_reads_would_be_noticed() -> None:
    assert _is_known("PREFECT_SERVER_API_AUTH_STRING")
    assert _is_known("MLFLOW_SERVER_ALLOWED_HOSTS")
    assert _is_known("HANDOFF_STORE")
    for name in ("PREFECT_SERVER_API_AUTH", "MLFLOW_ALLOWED_HOSTS", "HANDOFF_STORES", "PGHOSTS"):
        assert not _is_known(name)


@pytest.mark.parametrize("name", _SERVICES)
def test_a_service_of_compose_is_told_only_what_its_program_reads(name: str) -> None:
    unknown = {key for key in _SERVICES[name].get("environment", {}) if not _is_known(key)}
    assert not unknown


@pytest.mark.parametrize(
    "name",
    [name for name, service in _SERVICES.items() if service["image"].startswith("handoff-worker")],
)
def test_a_service_of_the_workers_image_knows_where_store_servers_and_keys_are(name: str) -> None:
    expected = {
        "HANDOFF_STORE", "HANDOFF_TRUSTED_KEYS", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING",
        "MLFLOW_TRACKING_URI", *_AWS,
    }  # fmt: skip
    assert expected <= set(_SERVICES[name].get("environment", {}))


@pytest.mark.parametrize("container", _CONTAINERS, ids=lambda c: c.place)
def test_a_container_of_a_manifest_is_told_only_what_its_program_reads(
    container: Container,
) -> None:
    words = " ".join(str(word) for word in [*container.spec.get("command", ()),
                     *container.spec.get("args", ()), *container.environment.values()])  # fmt: skip
    for name in container.environment:
        assert _is_known(name) or f"$({name})" in words, f"{name} is neither read nor used"


def test_what_manifests_hand_over_as_a_whole_is_read_by_name_too() -> None:
    maps = [
        o for _, o in manifests() if o["kind"] == "ConfigMap" and o["metadata"]["name"] != "places"
    ]
    assert len(maps) >= 3
    assert not {key for content in maps for key in content["data"] if not _is_known(key)}


def test_compose_takes_every_secret_from_a_file_that_git_ignores() -> None:
    for name, service in _SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if _SECRET.search(key) and key != "HANDOFF_SIGNING_KEY":
                assert variables(str(value)), f"{name} holds a value of {key}"
                assert ":?" in str(value), f"{key} may be empty"
    example = (STACK / ".env.example").read_text("utf-8")
    named = dict(re.findall(r"(?m)^([A-Z0-9_]+)=(.*)$", example))
    assert variables((STACK / "compose.yaml").read_text("utf-8")) == set(named)
    assert not [n for n, value in named.items() if _SECRET.search(n) and value]
    for path in (".env", "secrets/signing.pem", "secrets/trusted/release.pub"):
        command = ["git", "check-ignore", "--quiet", str(STACK / path)]
        assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0, path


def test_manifests_name_secrets_and_hold_none() -> None:
    assert not [o for _, o in manifests() if o["kind"] == "Secret" or "secretGenerator" in o]
    offered = set(re.findall(r"(?m)^([A-Z0-9_]+)=", (STACK / ".env.example").read_text("utf-8")))
    for container in _CONTAINERS:
        for name, value in container.environment.items():
            if isinstance(value, dict) and "secretKeyRef" in value:
                assert value["secretKeyRef"]["name"] == "handoff-secrets"
                assert value["secretKeyRef"]["key"] in offered
            elif _SECRET.search(name) and name != "HANDOFF_SIGNING_KEY":
                assert value == "handoff:$(PREFECT_PASSWORD)", f"{container.place} holds {name}"


def test_nothing_that_is_committed_looks_like_a_key() -> None:
    files = _text_files()
    assert len(files) > 20
    for path in files:
        assert "PRIVATE KEY-----" not in path.read_text("utf-8"), path
        assert path.suffix not in {".pem", ".key"}
        assert path.name != ".env"


@pytest.mark.parametrize(("service", "place"), [
    ("prefect", "Deployment/prefect/prefect"), ("mlflow", "Deployment/mlflow/mlflow"),
    ("databases", "Deployment/prefect/databases"), ("bucket", "Deployment/mlflow/bucket"),
    ("mlflow-user", "Job/deploy/mlflow-user"),
])  # fmt: skip
def test_a_manifest_runs_the_command_that_compose_runs(service: str, place: str) -> None:
    container = next(c for c in _CONTAINERS if c.place == place)
    assert container.spec["command"][:2] == ["tini", "--"]
    same = {"$(BUCKET)": "handoff", "$(ARTIFACTS)": "s3://handoff/mlflow"}
    there = [container.spec["command"][2:], [*_SERVICES[service]["command"]]]
    ours = [[filled_in(word, {}) for word in words] for words in there]
    for short, long in same.items():
        ours[0] = [word.replace(short, long) for word in ours[0]]
    assert ours[0] == ours[1]
    own = {n for n in container.environment if n not in {"PREFECT_PASSWORD", "BUCKET", "ARTIFACTS"}}
    whole = {
        key for source in container.spec.get("envFrom", ()) for _, o in manifests()
        if o["kind"] == "ConfigMap" and o["metadata"]["name"] == source["configMapRef"]["name"]
        for key in o["data"]
    }  # fmt: skip
    assert set(_SERVICES[service]["environment"]) <= own | whole
    assert own - {"PGPORT"} <= set(_SERVICES[service]["environment"])
