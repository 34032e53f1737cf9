"""The tools that judge the stack's files, by `infra/containers/check.sh`; and that they find
faults."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.infra.stack.stack_files import MANIFESTS, NO_TOOLS, STACK, TOOLS

pytestmark = pytest.mark.skipif(not (TOOLS / "hadolint").exists(), reason=NO_TOOLS)


def _check(stack: Path, tools: Path = TOOLS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(stack / "check.sh"), str(tools)], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def _copy(to: Path) -> Path:
    return Path(shutil.copytree(STACK, to / "stack"))


def test_every_tool_that_is_here_is_content_with_every_file() -> None:
    done = _check(STACK)
    assert done.returncode == 0, done.stdout
    assert "FAILED" not in done.stdout
    told = {line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("ok")}
    overlays = {path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml")}
    assert overlays >= {"minio", "aws", "gpu", "public"}
    assert told >= {
        "hadolint server.Dockerfile", "hadolint worker.Dockerfile", "docker-compose config",
        "docker-compose config, profile gpu", "docker-compose refuses to go without secrets",
        *(f"kubectl kustomize {name}" for name in overlays),
        *(f"kubernetes-validate --strict {name}" for name in overlays),
    }  # fmt: skip


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
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "NOT RUN  the Dockerfiles (no hadolint here" in done.stdout
    assert "NOT RUN  compose.yaml (no docker-compose here" in done.stdout
    assert done.returncode == 0
