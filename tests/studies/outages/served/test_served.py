"""What the faults of a served stack are judged by sees what it is there to see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.studies.outages.served.checks import see_twice
from tests.studies.outages.served.runs import ObservedRun, format_states, is_owed
from tests.studies.outages.served.secrets import secrets_in
from tests.studies.outages.served.striking import see_states
from tests.studies.outages.served.survivals import Survival, survival_table, with_earlier_rows
from tests.studies.outages.served.team import see_posted

_CRASHED = ObservedRun("1", "release", 1, "Crashed", "gone", "toy", "release:toy:0", 1.0, True)
_AGAIN = replace(_CRASHED, id="2", attempt=2, state="Completed", key="resume:1", created=2.0)


def test_a_crash_is_owed_a_repetition_until_there_is_one_or_enough_were_made() -> None:
    assert is_owed([_CRASHED])
    assert not is_owed([_CRASHED, _AGAIN])
    assert not is_owed([replace(_CRASHED, attempt=3)])
    assert not is_owed([replace(_CRASHED, state="Failed")])


def test_an_end_that_nothing_took_the_place_of_is_wrong() -> None:
    assert see_states([_CRASHED, _AGAIN]) == []
    assert see_states([_CRASHED]) == ["release toy attempt 1: Crashed: gone"]
    assert "Failed" in see_states([_CRASHED, replace(_AGAIN, state="Failed")])[0]
    assert format_states([_CRASHED, _AGAIN, replace(_AGAIN, model="z")], "release") == (
        "Crashed, Completed; Completed"
    )


def test_what_was_compiled_again_or_is_gone_from_the_cache_is_seen() -> None:
    assert see_twice({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}) == []
    assert see_twice({"a": 1, "b": 2}, {"a": 9}) == ["package a", "package b"]


def test_a_secret_is_found_wherever_in_a_file_it_lies(tmp_path: Path) -> None:
    path, secret = tmp_path / "log", b"planted-0123456789abcdef"
    secrets = {"the password": secret, "another": b"planted-else"}
    for before in (0, 5, (1 << 20) - 10, 1 << 20):
        path.write_bytes(b"x" * before + secret + b"x" * 50)
        assert secrets_in(path, secrets) == {"the password"}
    path.write_bytes(b"x" * (2 << 20))
    assert secrets_in(path, secrets) == set()


def test_the_table_counts_what_was_wrong() -> None:
    good = Survival("SIGKILL", "a release", "Crashed, Completed", 12.3, "1")
    bad = replace(good, twice=("package a",), wrong=("x", "y"))
    assert (good.is_survived, bad.is_survived) == (True, False)
    assert survival_table([good, bad])[2:] == [
        "| SIGKILL | a release | Crashed, Completed | 12 | 1 | 0 | 0 | 0 |",
        "| SIGKILL | a release | Crashed, Completed | 12 | 1 | 1 | 0 | 2 |",
    ]


def test_a_fault_that_strikes_again_takes_the_place_of_its_earlier_rows_alone() -> None:
    first = Survival("SIGKILL", "a release", "Crashed, Completed", 12.3, "1")
    other = replace(first, fault="SIGTERM")
    before = survival_table([replace(first, wrong=("x",)), other])
    assert with_earlier_rows(survival_table([first]), ["", *before, "", "2 faults."]) == [
        *before[:2], *survival_table([other])[2:], *survival_table([first])[2:],
    ]  # fmt: skip


def test_a_commit_that_was_posted_twice_or_never_is_seen() -> None:
    first, second = "a" * 40, "b" * 40
    keys = [f"release:toy:{first}:0", f"release:toy:{second}:0", "resume:1"]
    assert see_posted(keys, [first, second]) == []
    assert see_posted([*keys, keys[0]], [first, second]) == ["2 runs of the commit aaaa"]
    assert see_posted(keys[:1], [first, second]) == ["0 runs of the commit bbbb"]
