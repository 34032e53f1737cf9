"""Flow runs that build at once have cores of their own, and give them back however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.errors import UsageProblem
from handoff.infra.prefect import pools
from handoff.infra.stack.worker import run_worker
from tests.prefect_server import free_port

_RUN = """
import os, sys
from pathlib import Path
from handoff.infra.prefect.pools import take_cores
taken = take_cores(os.environ, Path(sys.argv[1]))
print(*taken, "of", *sorted(os.sched_getaffinity(0)), flush=True)
sys.stdin.read()
"""


@contextmanager
def flow_run(folder: Path, variable: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that takes cores; give it and what it took."""
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, str(folder)], env={**os.environ, **variable}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@given(st.sets(st.integers(0, 500), min_size=1, max_size=200), st.data())
def test_every_core_is_in_one_share_and_shares_differ_by_one_core_at_most(
    cores: set[int], data: st.DataObject
) -> None:
    shares = data.draw(st.integers(1, len(cores)))
    sets = pools.split_cores(cores, shares)
    assert [core for one in sets for core in one] == sorted(cores)
    assert len(sets) == shares
    assert {len(one) for one in sets} <= {len(cores) // shares, len(cores) // shares + 1}


def test_two_runs_take_different_cores_and_a_killed_one_leaves_its_own(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core can't be shared out")
    variable = pools.core_sets_variable("handoff-build", pools.split_cores(cores[:2], 2))
    with flow_run(tmp_path, variable) as (first, one), flow_run(tmp_path, variable) as (_, other):
        assert {one, other} == {f"{core} of {core}" for core in cores[:2]}
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        with flow_run(tmp_path, variable) as (_, again):
            assert again == one


def test_pools_of_one_machine_share_out_their_own(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    variables = [
        pools.core_sets_variable(pool, [(core,)]) for pool in ("handoff-build", "handoff-x")
    ]
    with (
        flow_run(tmp_path, variables[0]) as (_, one),
        flow_run(tmp_path, variables[1]) as (_, other),
    ):
        assert one == other == f"{core} of {core}"


def test_without_sets_all_cores_are_used_and_nothing_is_locked(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert pools.take_cores({}, tmp_path) == ()
    assert os.sched_getaffinity(0) == before
    assert list(tmp_path.iterdir()) == []


def test_where_no_set_becomes_free_a_run_goes_on_with_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_PATIENCE_S", 0.0)
    variable = pools.core_sets_variable("handoff-build", [(min(os.sched_getaffinity(0)),)])
    with flow_run(tmp_path, variable):
        assert pools.take_cores(variable, tmp_path) == ()


def test_a_worker_with_more_builds_than_cores_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    monkeypatch.setattr("handoff.infra.stack.worker.require_server", lambda *_: None)
    with pytest.raises(UsageProblem, match="More flow runs at once than cores"):
        run_worker("handoff-build", 1 + len(os.sched_getaffinity(0)), "", "")
