"""A compiler that the kernel ends says nothing of the model that it compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from handoff.artifacts.errors import BlessingRefused, StepKilled
from handoff.infra.engine.worker import _as_refusal
from tests.limits import LIMIT_S


def killed(compiler: str, folder: Path) -> RuntimeError:
    """Return what is raised of a compiler whose own program is killed while it reads."""
    source = folder / "source.cpp"
    os.mkfifo(source)
    command = [compiler, "-c", str(source), "-o", str(folder / "made.o")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
        deadline = time.monotonic() + LIMIT_S
        while not (programs := psutil.Process(driver.pid).children()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        programs[0].kill()
        assert driver.stderr is not None
        output = driver.stderr.read()
    assert driver.returncode
    return RuntimeError(output)


def refused_by(error: Exception) -> BlessingRefused:
    """Return what a compile step makes of its compiler's error."""
    refusal = BlessingRefused("can't compile", expected="a package", got="none", remedy="fix it")
    refusal.__cause__ = error
    return refusal


def test_a_killed_compiler_is_the_machines_matter(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ here")
    error = _as_refusal("compile", refused_by(killed("g++", tmp_path)))
    assert type(error) is StepKilled
    assert error.is_machine_fault
    assert "the compiler of the step compile was killed" in str(error)


def test_a_compiler_that_refuses_its_source_is_still_a_refusal() -> None:
    refusal = refused_by(RuntimeError("source.cpp:1: error: 'killed' was not declared"))
    assert _as_refusal("compile", refusal) is refusal
    # What a model's own text says counts for nothing.
    quoted = BlessingRefused("Killed signal terminated program", expected="a", got="b", remedy="c")
    assert _as_refusal("compile", quoted) is quoted
