"""What earlier releases took: bounded, and never in the way of a release."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from handoff.flows.progress import announce_step
from handoff.infra.terminal.step_times import WHOLE_RELEASE, keep_times, read_times, record_times


def test_nothing_is_expected_of_what_never_ran(tmp_path: Path) -> None:
    assert read_times(tmp_path / "none", "toy").expected("compile cpu") is None


def test_the_median_of_the_last_five_is_expected(tmp_path: Path) -> None:
    for took_s in (100.0, 1.0, 2.0, 9.0, 3.0, 4.0):
        keep_times(tmp_path, "toy", {"compile cpu": took_s})
    assert read_times(tmp_path, "toy").expected("compile cpu") == 3.0
    assert read_times(tmp_path, "other").expected("compile cpu") is None


def test_the_history_is_bounded(tmp_path: Path) -> None:
    for number in range(0, 500, 100):
        keep_times(tmp_path, "toy", {f"step {number + n}": 1.0 for n in range(100)})
    times = read_times(tmp_path, "toy")
    assert times.expected("step 0") is None
    assert times.expected("step 499") == 1.0
    assert (tmp_path / "toy.json").stat().st_size < 8192


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"compile": 3}',
        b'{"compile": ["x", NaN, -1, Infinity, null, true, {}, 1e300]}', b'{"compile": [[1]]}',
    ],
)  # fmt: skip
def test_damage_counts_as_nothing_and_is_written_over(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_bytes(damage)
    assert read_times(tmp_path, "toy").expected("compile") is None
    keep_times(tmp_path, "toy", {"compile": 2.0})
    assert read_times(tmp_path, "toy").expected("compile") == 2.0
    assert json.loads((tmp_path / "toy.json").read_text()) == {"compile": [2.0]}


def test_what_is_whole_beside_damage_is_kept(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text('{"compile": [1.0, "x"], "verify": "y"}')
    assert read_times(tmp_path, "toy").expected("compile") == 1.0


def test_a_place_that_cant_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file")
    keep_times(tmp_path / "times", "toy", {"compile": 1.0})
    assert read_times(tmp_path / "times", "toy").expected("compile") is None


def _keep(folder: str, step: int) -> None:
    keep_times(Path(folder), "toy", {f"step {step}": 1.0})


def test_of_many_writers_at_once_none_is_lost(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(_keep, [str(tmp_path)] * 40, range(40)))
    times = read_times(tmp_path, "toy")
    assert all(times.expected(f"step {step}") == 1.0 for step in range(40))
    assert [path.name for path in tmp_path.iterdir()] == ["toy.json"]


def test_steps_that_are_done_are_noted_and_refused_ones_are_not() -> None:
    logging.getLogger("handoff.progress").setLevel(logging.INFO)
    with record_times() as noted:
        for seconds in (1.5, 2.0):
            with announce_step("compile cpu") as step:
                step.seconds = seconds
        with pytest.raises(RuntimeError, match="no"), announce_step("verify cpu"):
            raise RuntimeError("no")
    assert noted["compile cpu"] == 3.5
    assert set(noted) == {"compile cpu", WHOLE_RELEASE}
