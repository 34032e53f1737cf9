"""The program of a flow run: it ends with its worker, and tells the flow where it is."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.flows import host
from tests.limits import LIMIT_S

_RUN = """
import os, sys, time
from handoff.infra.prefect.flow_run import end_with_parent
end_with_parent(os.getppid())
print(os.getpid(), flush=True)
time.sleep(300)
"""
_WORKER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_flow_run_ends_with_its_worker_however_that_ends(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER, _RUN], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        run = psutil.Process(int(worker.stdout.readline()))
        worker.send_signal(number)
        assert worker.wait(10) == -number
        gone, alive = psutil.wait_procs([run], timeout=10)
        assert (gone, alive) == ([run], [])


def test_a_run_whose_worker_ended_before_it_began_does_not_begin() -> None:
    program = (
        "import os; from handoff.infra.prefect.flow_run import end_with_parent\n"
        "end_with_parent(1 + os.getppid())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert answer.returncode == 1
    assert "the worker ended before its run began" in answer.stderr


def test_without_host_settings_a_flow_says_how_it_is_to_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from handoff.flows.collect_garbage import collect_garbage

    monkeypatch.setattr(host, "_readers", [])
    command = r"python -P -m handoff\.infra\.prefect\.flow_run"
    with pytest.raises(EnvironmentLacking, match=command):
        collect_garbage.fn()
