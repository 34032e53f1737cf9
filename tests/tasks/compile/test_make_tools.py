"""What compilations share is made by two compilers at once, unless there is too little memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.compile.caching import make_tools
from handoff.tasks.compile.messages import ToolsJob
from handoff.tasks.release.jobs import RUNNER_SOURCE
from tests.limits import LIMIT_S


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolsJob:
    """A job whose steps are not imported: they are in this process already."""
    monkeypatch.setattr(make_tools, "_STEPS_TO_IMPORT", ())
    programs = tmp_path / "programs"
    return ToolsJob(native_cpu_target(), {}, tmp_path / "shared", RUNNER_SOURCE, programs)


def test_the_runner_and_the_headers_are_made_at_once(
    job: ToolsJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def build(*_: object) -> tuple[Path, float]:
        both.wait(LIMIT_S)
        return tmp_path / "runner", 1.0

    monkeypatch.setattr(make_tools, "memory_bytes", lambda: 4 << 30)
    monkeypatch.setattr("handoff.tasks.probe.build.build_runner", build)
    monkeypatch.setattr(make_tools, "_compile_sample", lambda _: both.wait(LIMIT_S))
    assert make_tools.run(job).program == tmp_path / "runner"


def test_in_little_memory_one_is_made_after_the_other(
    job: ToolsJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def build(*_: object) -> tuple[Path, float]:
        events.append("begun")
        threading.Event().wait(0.2)
        events.append("built")
        return tmp_path / "runner", 1.0

    monkeypatch.setattr(make_tools, "memory_bytes", lambda: 2 << 30)
    monkeypatch.setattr("handoff.tasks.probe.build.build_runner", build)
    monkeypatch.setattr(make_tools, "_compile_sample", lambda _: events.append("headers"))
    assert make_tools.run(job).program == tmp_path / "runner"
    assert events == ["begun", "built", "headers"]
