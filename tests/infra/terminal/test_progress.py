"""Progress: one line that is redrawn on a terminal, plain lines in a log, nothing with --quiet."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from handoff.infra.terminal import progress
from handoff.infra.terminal.step_times import StepTimes
from tests.terminal import written_to_terminal

# A release's steps as they are announce_step, the compilation being one of a second.
_STEPS = """
import json, sys, time
from handoff.artifacts.errors import BlessingRefused
from handoff.flows.progress import announce_step
from handoff.infra.terminal.progress import shown_progress
from handoff.infra.terminal.step_times import StepTimes
times = StepTimes({step: (took_s,) for step, took_s in json.loads(sys.argv[1]).items()})
with shown_progress(times):
    with announce_step("take in", does="copy it"):
        pass
    with announce_step("compile cpu"):
        time.sleep(1.0)
    try:
        with announce_step("verify cpu"):
            raise BlessingRefused("it is off", expected="right", got="wrong", remedy="Mend it")
    except BlessingRefused:
        pass
    try:
        with announce_step("probe cpu"):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
print("the result")
"""


def environment(**added: str) -> dict[str, str]:
    unset = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")
    return {**{k: v for k, v in os.environ.items() if k not in unset}, **added}


def piped(*arguments: str, times: dict[str, float] | None = None) -> tuple[str, str]:
    result = subprocess.run(
        [sys.executable, "-c", _STEPS, json.dumps(times or {}), *arguments],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return result.stdout, result.stderr


def on_a_terminal(*arguments: str, columns: int, times: dict[str, float], **added: str) -> str:
    """Return all that the program wrote to a terminal of that width."""
    asked = environment(TERM="xterm", COLUMNS=str(columns), LINES="24", **added)
    return written_to_terminal([sys.executable, "-c", _STEPS, json.dumps(times), *arguments], asked)


def test_a_log_names_a_step_that_nobody_knew_to_be_long_while_it_runs() -> None:
    program = """
import time
from handoff.flows.progress import announce_step
from handoff.infra.terminal import progress
progress._ANNOUNCE_AFTER_S = 0.2
with progress.shown_progress():
    with announce_step("look", does="a moment"):
        pass
    with announce_step("compile cpu", does="make the package"):
        time.sleep(1.0)
    with announce_step("verify cpu"):
        pass
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, long, ended, _ = result.stderr.splitlines()
    assert first.startswith("look: ")
    assert long == "compile cpu ...  make the package"
    assert ended.startswith("compile cpu: 1.")


def test_a_log_gets_plain_lines_with_what_steps_took_before() -> None:
    printed, errors = piped(times={"compile cpu": 12.0})
    assert printed == "the result\n"
    lines = errors.splitlines()
    assert lines[0] == "take in: 0.0 s  copy it"
    assert lines[1] == "compile cpu ... (last time: 12 s)"
    assert re.fullmatch(r"compile cpu: 1\.\d s \(last time: 12 s\)", lines[2])
    assert lines[3].startswith("verify cpu: refused after")
    assert lines[4].startswith("probe cpu: ended after")
    assert "\x1b" not in errors
    assert "\r" not in errors


def test_a_step_with_a_budget_says_before_it_starts_how_long_it_may_take() -> None:
    steps = """
from handoff.flows.progress import announce_step
from handoff.infra.terminal.progress import shown_progress
with shown_progress(), announce_step("localize cpu", "at most 10 compiles and 240 s"):
    pass
"""
    result = subprocess.run(
        [sys.executable, "-c", steps],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stderr.startswith("localize cpu: at most 10 compiles and 240 s ...\n")


def test_the_first_run_says_nothing_of_earlier_ones() -> None:
    _, errors = piped()
    assert "last time" not in errors
    assert "about" not in errors


def test_a_log_in_json_has_an_object_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_LOG", "json")
    printed, errors = piped()
    assert printed == "the result\n"
    records = [json.loads(line) for line in errors.splitlines()]
    ended = [one for one in records if one["phase"] != "begin"]
    assert [(one["step"], one["phase"]) for one in ended] == [
        ("take in", "done"), ("compile cpu", "done"), ("verify cpu", "failed"),
        ("probe cpu", "ended"),
    ]  # fmt: skip
    assert ended[0]["does"] == "copy it"
    assert 0.9 < ended[1]["seconds"] < 60
    assert all(one["level"] == "info" and one["time"].endswith("+00:00") for one in records)


def test_a_form_of_log_that_there_is_not_is_refused_in_a_sentence() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "handoff", "metrics"], env=environment(HANDOFF_LOG="xml"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 64
    assert "HANDOFF_LOG is no form of log: expected text or json, got xml" in result.stderr


def test_with_quiet_only_the_result_is_told() -> None:
    assert piped("--quiet", times={"compile cpu": 12.0}) == ("the result\n", "")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_has_one_line_that_is_redrawn_and_fits(columns: int) -> None:
    times = {"release": 41.0, "compile cpu": 12.0}
    written = on_a_terminal(columns=columns, times=times)
    drawn = re.findall(r"\d+ s of about 41 s:[^\x1b\r\n]*", written)
    assert len(drawn) > 3
    assert any("compile cpu" in line for line in drawn)
    assert all(len(line) <= columns for line in drawn)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "✓ take in 0.0 s  copy it" in plain
    assert re.search(r"✓ compile cpu 1\.\d s \(last time: 12 s\)", plain)
    assert "refused verify cpu" in plain
    assert "stopped probe cpu" in plain
    assert plain.endswith("the result\r\n")


def test_a_step_that_takes_far_longer_than_last_time_is_not_promised_to_end_by_then() -> None:
    line = progress._LiveProgress(StepTimes({"take in": (0.1,)}), Console(stderr=True))
    assert line._elapsed("take in", 3.0) == "3 s of about 0.1 s"
    assert line._elapsed("take in", 12.0) == "12 s (last time: 0.1 s)"
    assert line._elapsed("sign", 12.0) == "12 s"


def test_colours_are_on_a_terminal_and_not_with_no_color() -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    assert coloured.search(on_a_terminal(columns=80, times={}))
    assert not coloured.search(on_a_terminal(columns=80, times={}, NO_COLOR="1"))


def test_findings_are_coloured_on_a_terminal_alone(tmp_path: Path) -> None:
    code = (
        "from handoff.infra.cli.main import main; import handoff.infra.explaining.explain\n"
        "import sys; sys.argv = ['handoff', 'explain', 'unmoved-output']; main()"
    )
    asked = [sys.executable, "-c", code]
    for no_color, is_bold in (("", True), ("1", False)):
        env = environment(NO_COLOR=no_color, HANDOFF_HOME=str(tmp_path))
        assert ("\x1b[1m" in written_to_terminal(asked, env)) == is_bold
