"""Releases that are refused, fail or are interrupted: why is said, and nothing is registered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from handoff.tasks.optimize.extensions import digest_extension
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.mlflow_server import copy_mlflow_tables
from tests.prefect_server import copy_prefect_database
from tests.shared_tools import share_built

pytestmark = [pytest.mark.demo, pytest.mark.compile, pytest.mark.server]


def test_a_compiler_that_computes_wrongly_is_refused_with_the_place_and_a_script(
    training: Path, tmp_path: Path
) -> None:
    made = handoff(
        "deliver", "small:wavy", "--to", "wavy", "--name", "wavy", home=tmp_path, cwd=training
    )
    assert made.returncode == 0, made.stderr
    recipe, fault = training / "planted.toml", "tests.tasks.localize.planted_faults"
    # Without passes, and compared on one draw: enough to find it, and to look for its place.
    recipe.write_text(
        f'passes = []\nextensions = ["{fault}@{digest_extension(fault)}"]\n[verify]\nseeds = 1\n'
    )
    result = handoff("release", str(training / "wavy"), "--recipe", str(recipe), home=tmp_path)
    assert_is_a_sentence(result, 4, "tanh (aten.tanh.default), module.py:", "lowering of tanh")
    (script,) = tmp_path.rglob("repeat.py")
    assert str(script) in result.stderr.replace("\n", "")
    assert handoff("list", "--json", home=tmp_path).stdout.count('"wavy"') == 0, (
        "nothing is registered"
    )


@pytest.mark.long
def test_a_package_outside_the_tolerance_is_refused_and_nothing_is_registered(
    training: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    # Without passes, so that it is the package that is refused and not a pass.
    exact = "atol = 0.0\nrtol = 0.0\nrmse_factor = 0.0\nrmse_floor = 0.0\n"
    # Where they part from eager's is not asked: that is the planted fault's test.
    recipe.write_text(f"passes = []\n[verify]\nlocalize_seconds = 0\n[tolerance.float32]\n{exact}")
    home = tmp_path / "home"
    delivery = str(training / "delivery")
    result = handoff("release", delivery, "--recipe", str(recipe), "--json", home=home)
    assert result.returncode == 4, result.stderr
    answer = json.loads(result.stdout)
    assert answer["version"] is None
    (target,) = answer["targets"]
    assert not target["accepted"]
    assert "RMSE to float64" in " ".join(target["reasons"])
    assert json.loads(handoff("list", "--json", home=home).stdout) == {"models": []}


@pytest.mark.long
def test_a_compiler_that_compiles_nothing_is_told(training: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "broken-g++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\nexit 1\n')
    compiler.chmod(0o755)
    result = handoff(
        "release", str(training / "delivery"), home=tmp_path / "home", CXX=str(compiler)
    )
    assert_is_a_sentence(result, 1, "can't be built here", "a C++ compiler with that level")


@pytest.mark.long
def test_a_store_that_is_not_there_fails_the_release_and_registers_nothing(
    training: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    result = handoff(
        "release",
        str(training / "delivery"),
        home=home,
        HANDOFF_STORE="s3://models/handoff",
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="key-that-must-not-be-told",
        AWS_SECRET_ACCESS_KEY="secret-that-must-not-be-told",
        AWS_DEFAULT_REGION="us-east-1",
    )
    assert_is_a_sentence(result, 5)
    assert "must-not-be-told" not in result.stderr + result.stdout
    logs = "".join(path.read_text() for path in home.rglob("*.log"))
    assert "must-not-be-told" not in logs


def test_a_release_interrupted_in_the_middle_leaves_no_process_and_no_version(
    training: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    share_built(home / "builds")
    copy_prefect_database(home / "prefect")
    copy_mlflow_tables(home / "mlflow" / "mlflow.db")
    # As from a terminal: what a shell starts in the background ignores the signal.
    as_from_a_terminal = ["env", "--default-signal=INT"]
    command = [
        sys.executable,
        "-m",
        "handoff",
        "release",
        str(training / "delivery"),
    ]
    running = subprocess.Popen(
        [*as_from_a_terminal, *command],
        env={**os.environ, "HANDOFF_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(b"optimize"):
            break
    children = psutil.Process(running.pid).children(recursive=True)
    # As a terminal does, which tells the embedded server, too.
    os.killpg(running.pid, signal.SIGINT)
    rest = running.stdout.read()
    assert running.wait(timeout=60) == 130, rest
    assert b"Traceback" not in rest
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert json.loads(handoff("list", "--json", home=home).stdout) == {"models": []}


def test_a_prefect_server_that_is_not_there_is_told(training: Path, tmp_path: Path) -> None:
    result = handoff(
        "release",
        str(training / "delivery"),
        home=tmp_path / "home",
        PREFECT_API_URL="http://127.0.0.1:9/api",
    )
    assert_is_a_sentence(result, 1, "PREFECT_API_URL", "http://127.0.0.1:9/api")
