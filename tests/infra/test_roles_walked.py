"""The roles that extras make, each walked by what it is for, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.roles import role, run
from tests.served_stack import handoff_home
from tests.tasks.registry.registering import some_registry

_MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), (torch.randn(3, 8),)
"""


def test_a_serving_machine_lists_and_pulls_from_s3_without_what_releases_need(
    tmp_path: Path, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    registry = some_registry(tmp_path / "made", "s3://models/roles")
    registry.release()
    python, place = role(tmp_path, "s3"), tmp_path / "serving"
    place.mkdir()
    settings = {**s3_environment, "HANDOFF_STORE": "s3://models/roles"}
    code = "from importlib.util import find_spec as f; print(f('prefect'), f('mlflow'))"
    assert run(python, place, "-c", code)[1].split() == ["None", "None"]
    public = str(registry.key.public)

    def handoff(*arguments: str) -> tuple[int, str, str]:
        return run(python, place, "-m", "handoff", *arguments, **settings)

    refused, _, why = handoff("pull", "toy@candidate", "--to", "pulled")
    assert refused != 0
    assert "trust" in why
    assert handoff("keys", "trust", public)[0] == 0
    status, output, errors = handoff("list", "--json")
    assert status == 0, errors
    assert "toy" in output
    status, output, errors = handoff("pull", "toy@candidate", "--to", "pulled")
    assert status == 0, errors
    assert handoff("verify", "pulled")[0] == 0
    checks = json.loads(handoff("doctor", "--json")[1])["checks"]
    assert not [check for check in checks if check["answer"] == "missing"], checks


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_deploying_machine_releases_what_a_serving_machine_loads(tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(_MODEL)
    python = role(tmp_path, "release", file_by_file=True)
    for arguments in (
        ("deliver", "own_model:build", "--name", "own", "--to", "delivery"),
        ("release", "delivery"),
        ("pull", "own@candidate", "--to", "pulled"),
    ):
        status, output, errors = run(python, tmp_path, "-m", "handoff", *arguments)
        assert status == 0, (arguments, output, errors)
    served = "import handoff, torch; print(handoff.load('pulled', keys={keys!r})(torch.ones(3, 8)))"
    keys = next((tmp_path / "home").rglob("*.pub"))
    status, output, errors = run(python, tmp_path, "-c", served.format(keys=str(keys)))
    assert status == 0, errors
    assert "tensor(" in output


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(900)
def test_a_team_s_machine_brings_its_stack_up_and_down(tmp_path: Path) -> None:
    python = role(tmp_path, "stack", file_by_file=True)
    with handoff_home({}, python) as home:
        home.processes()
        assert home.run("doctor").returncode == 0
        assert home.run("down", "--now").returncode == 0
        assert not home.left()
