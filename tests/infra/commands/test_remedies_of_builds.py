"""A build that ends by no fault of its model, a killed compiler, and the way out of that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.small_delivery import FACTORY
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.limits import LIMIT_S
from tests.shared_tools import share_built

pytestmark = [pytest.mark.demo, pytest.mark.compile, pytest.mark.server]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a delivery of a small model."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.py").write_text(FACTORY)
    made = handoff("deliver", "small:build", "--to", "delivery", "--name", "small",
                   home=folder, cwd=folder)  # fmt: skip
    assert made.returncode == 0, made.stderr
    share_built(folder / "builds")
    return folder


def compiling(release: subprocess.Popen[str]) -> psutil.Process:
    """Wait until a compiler runs on the model's own code; return the step that runs it."""
    deadline = time.monotonic() + LIMIT_S
    while release.poll() is None and time.monotonic() < deadline:
        for process in psutil.Process(release.pid).children(recursive=True):
            try:
                prints_to = Path(f"/proc/{process.pid}/fd/1").readlink().name
                if prints_to.startswith("compile") and process.children():
                    return process
            except OSError:
                continue
        time.sleep(0.02)
    raise AssertionError("no compiler was seen")


@pytest.mark.long
def test_a_killed_compiler_is_no_verdict_and_the_same_release_again_succeeds(home: Path) -> None:
    asked = ("release", str(home / "delivery"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "AWS_", "MLFLOW"))}
    release = subprocess.Popen(
        [sys.executable, "-m", "handoff", *asked], cwd=home, text=True,
        env={**kept, "HANDOFF_HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    compiling(release).send_signal(signal.SIGKILL)
    out, err = release.communicate(timeout=LIMIT_S)
    completed = subprocess.CompletedProcess(asked, release.returncode, out, err)
    assert_is_a_sentence(
        completed, 4, "SIGKILL", "Nothing was shown to be wrong", "then release it again",
        "handoff explain BuildCrashed",
    )  # fmt: skip
    assert json.loads(handoff("list", "--json", home=home).stdout) == {"models": []}
    again = handoff(*asked, home=home)
    assert again.returncode == 0, again.stderr
