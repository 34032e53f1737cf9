"""Every end of the program that calls a package has a name, and none of them ends a release."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.release.mechanics import Outcome, RunnerLimits
from handoff.tasks.probe.build import build_runner
from handoff.tasks.probe.cases import TrialOutcomes, try_all
from handoff.tasks.probe.runner_process import LoadedProgram, ProcessResult, run_limited
from tests.limits import LIMIT_S
from tests.tasks.probe.samples import PLANTED, SHORT


def feed(
    program: Path, hostile: Sequence[str], way: str, limits: RunnerLimits = SHORT
) -> TrialOutcomes:
    """Feed hostile inputs to a program that is started each time, or loaded once."""
    loaded = LoadedProgram(program, limits)

    def run(some: Sequence[str]) -> ProcessResult:
        arguments = ["trial", *(part for name in some for part in ("--hostile", name))]
        if way == "loaded":
            return loaded.run(arguments)
        return run_limited(program, arguments, limits)

    with closing(loaded):
        return try_all(hostile, run)


# A busy machine may take seconds to give memory, or to write a crash down.
PATIENT = replace(SHORT, answer_s=60.0)

both_ways = pytest.mark.parametrize("way", ["started", "loaded"])


@pytest.mark.compile
@both_ways
@pytest.mark.parametrize(
    ("fault", "outcome", "message"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("deep", "crashed", "SIGSEGV"),
        ("illegal", "crashed", "SIGILL"),
        ("abort", "crashed", "SIGABRT: what():  index out of bounds"),
        ("exit", "crashed", "it ended without an answer"),
        ("hang", "hung", "no answer within 2 s"),
        ("spin", "hung", "no answer within 2 s"),
        ("memory", "out of memory", "SIGABRT: what():  std::bad_alloc"),
        ("clings", "hung", "no answer within 2 s"),
        ("tells-ended", "crashed", "SIGSEGV"),
        ("writes-everywhere", "crashed", "SIGSEGV"),
        ("truncates", "crashed", "SIGSEGV"),
        ("reads", "refused", ""),
        ("taken", "answered", ""),
        ("wrong-after", "harmed", ""),
    ],
)
def test_every_end_has_a_name_and_the_input_that_caused_it(
    planted: Path, fault: str, outcome: Outcome, message: str, way: str
) -> None:
    limits = SHORT if outcome == "hung" else PATIENT
    found = feed(planted, ["a:fine", f"a:{fault}", "b:fine"], way, limits)
    assert found["a:fine"][0] == "refused"
    assert found["b:fine"][0] == "refused"
    assert found[f"a:{fault}"] == (outcome, message)


@pytest.mark.compile
@both_ways
def test_a_disk_without_room_says_nothing_of_a_package(planted: Path, way: str) -> None:
    # These are the words of what unpacks a package (`test_full_disk.py` has them from torch).
    with pytest.raises(EnvironmentLacking, match="handoff-runner found no room on a disk"):
        feed(planted, ["a:fine", "a:no-room"], way)


@pytest.mark.compile
@both_ways
def test_a_process_that_a_package_leaves_behind_is_noticed(planted: Path, way: str) -> None:
    command = ["trial", "--hostile", "a:leaves"]
    with closing(LoadedProgram(planted, SHORT)) as loaded:
        ended = loaded.run(command) if way == "loaded" else run_limited(planted, command, SHORT)
        assert ended.outcome == "hung"
        # Nor is what it prints later another command's.
        after = loaded.run(["trial", "--hostile", "a:hang"])
    assert [line["hostile"] for line in after.lines] == ["a:hang"]


@pytest.mark.compile
@both_ways
def test_what_an_earlier_input_has_broken_is_not_blamed_on_the_later_one_alone(
    planted: Path, way: str
) -> None:
    outcome, message = feed(planted, ["a:breaks", "a:meets-broken"], way)["a:meets-broken"]
    assert outcome == "harmed"
    assert "alone it is refused" in message


@pytest.mark.compile
def test_a_program_that_tries_nothing_has_survived_nothing(planted: Path) -> None:
    found = try_all(["a:fine"], lambda some: run_limited(planted, ["replay"], SHORT))
    assert found["a:fine"][0] == "not run"


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with closing(LoadedProgram(tmp_path / "none", SHORT)) as loaded:
        for ended in (run_limited(tmp_path / "none", [], SHORT), loaded.run([]), loaded.run([])):
            assert ended.outcome == "refused"
            assert "not found" in ended.message or "No such file" in ended.message


def still_running(program: Path) -> list[psutil.Process]:
    """Return the processes of the program that haven't ended a while after they were to."""
    those = [p for p in psutil.process_iter(["exe"]) if p.info["exe"] == str(program)]
    return psutil.wait_procs(those, timeout=LIMIT_S)[1]


def children(loaded: LoadedProgram) -> list[psutil.Process]:
    """Return what was forked from the loaded program."""
    assert loaded._process is not None
    return psutil.Process(loaded._process.pid).children()


@pytest.mark.compile
@pytest.mark.parametrize("fault", ["hang", "spin", "clings"])
def test_what_hangs_is_ended_before_the_next_command_begins(planted: Path, fault: str) -> None:
    with closing(LoadedProgram(planted, SHORT)) as loaded:
        assert loaded.run(["trial", "--hostile", f"a:{fault}"]).outcome == "hung"
        assert children(loaded) == []
    assert still_running(planted) == []


@pytest.mark.compile
def test_a_command_that_stops_what_it_was_forked_from_ends_with_it(planted: Path) -> None:
    with closing(LoadedProgram(planted, SHORT)) as loaded:
        assert loaded.run(["trial", "--hostile", "a:stops"]).outcome == "hung"
        assert still_running(planted) == []
        assert loaded.run(["trial", "--hostile", "a:hang"]).outcome == "hung"
    assert still_running(planted) == []


@pytest.mark.compile
def test_what_is_killed_between_two_commands_is_loaded_again(planted: Path) -> None:
    fine = ["trial", "--hostile", "a:fine"]
    with closing(LoadedProgram(planted, PATIENT)) as loaded:
        assert loaded.run(fine).outcome is None
        assert loaded._process is not None
        loaded._process.kill()
        loaded._process.wait()
        assert loaded.run(fine).outcome is None
        assert [line["event"] for line in loaded.run(fine).lines] == ["trying", "tried"]


@pytest.mark.compile
def test_arguments_arrive_as_they_are(planted: Path) -> None:
    # As much as no message holds, and bytes that are no text.
    many = [f"a:{number:06}" for number in range(40_000)]
    with closing(LoadedProgram(planted, PATIENT)) as loaded:
        odd = loaded.run(["trial", "--hostile", os.fsdecode(b"\xff:fine"), "--hostile", ""])
        tried = loaded.run(["trial", *(part for name in many for part in ("--hostile", name))])
    assert odd.outcome is tried.outcome is None
    assert [line["hostile"] for line in tried.lines[1::2]] == many


@pytest.mark.compile
def test_each_run_begins_anew_and_knows_nothing_of_the_one_before(planted: Path) -> None:
    with closing(LoadedProgram(planted, PATIENT)) as loaded:
        first = loaded.run(["trial", "--hostile", "a:breaks"])
        second = loaded.run(["trial", "--hostile", "a:meets-broken"])
    assert first.outcome is second.outcome is None
    assert [line["event"] for line in second.lines] == ["trying", "tried"]


@pytest.mark.compile
def test_a_program_is_built_once_for_a_source(tmp_path: Path) -> None:
    source = shutil.copytree(PLANTED, tmp_path / "source")
    first, seconds = build_runner(source, tmp_path / "programs")
    assert seconds > 0
    assert build_runner(source, tmp_path / "programs") == (first, 0.0)
    (source / "main.cpp").write_text((source / "main.cpp").read_text() + "// changed\n")
    assert build_runner(source, tmp_path / "programs")[0] != first
    assert {path.name[:15] for path in (tmp_path / "programs").iterdir()} == {"handoff-runner-"}


@pytest.mark.compile
@pytest.mark.parametrize(
    ("text", "message"), [("int main() { return x; }", "'x' was not"), (None, "no .cpp")]
)
def test_a_source_that_does_not_compile_is_reported(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "main.cpp").write_text(text)
    with pytest.raises(EnvironmentLacking, match="could not be built") as caught:
        build_runner(tmp_path, tmp_path / "programs")
    assert message in caught.value.got.replace("\u2018", "'").replace("\u2019", "'")
