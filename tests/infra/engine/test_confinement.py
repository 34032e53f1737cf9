"""What a payload can do in the processes that hold a delivery, a compiler or compiled code."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.artifacts.errors import BudgetSpent
from handoff.infra.engine import process_groups
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.confinement import find_confinement_gaps
from handoff.infra.engine.landlock import landlock_version
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.optimize.extensions import digest_extension
from tests.infra.engine.payloads import NEEDED, REFUSED, attempts, table
from tests.limits import LIMIT_S
from tests.marked import text_between_marks
from tests.shared_tools import copy_built

PAGE = Path(__file__).parents[3] / "docs" / "platform.md"
confined = pytest.mark.skipif(landlock_version() < 6, reason="this kernel can't confine as much")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder that isn't below the one for temporary files, as no user's home is."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="handoff-payloads-"))
    monkeypatch.setenv("HANDOFF_HOME", str(folder / "home"))
    yield folder
    shutil.rmtree(folder)


@confined
@pytest.mark.compile
def test_a_payload_can_do_its_processs_work_in_each_of_them_and_nothing_else(place: Path) -> None:
    copy_built(place / "home" / "builds")
    found = attempts(place)
    assert len(found) == 5
    for kind, could in found.items():
        assert {name for name in REFUSED if could[name]} == set(), kind
        assert {name for name in NEEDED if not could[name]} == set(), kind
    assert table(found) == text_between_marks(PAGE, "payloads").strip()


@confined
def test_the_doctor_finds_nothing_that_is_still_possible() -> None:
    assert find_confinement_gaps() == ()


@pytest.mark.parametrize(
    "bomb",
    [
        # Slower than such bombs are, which are ended as well: other tests run beside this one.
        "import os, time\nwhile True:\n    os.fork()\n    time.sleep(0.05)\n",
        "import subprocess, time\n"
        "subprocess.Popen(['sh', '-c', 'while :; do sleep 60 & done'], start_new_session=True)\n"
        "time.sleep(60)\n",
        "import threading, time\n"
        "while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()\n",
    ],
)
def test_a_fork_bomb_is_ended_with_all_that_it_started_and_reported(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_groups, "MAX_THREADS", 300)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_bomb.py").write_text(bomb)
    extensions = (f"planted_bomb@{digest_extension('planted_bomb')}",)
    process = StepProcess(ProcessPlan("inspect", extensions=extensions), tmp_path / "l" / "log")
    try:
        with pytest.raises(BudgetSpent, match="started more processes than it may"):
            process.run(TraceabilityJob(tmp_path), limit_s=120)
    finally:
        process.close()
    # Hundreds of processes take a moment to end.
    deadline = time.monotonic() + LIMIT_S
    group = process._process.pid
    assert group is not None
    while (left := _members(group)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def _members(group: int) -> list[str]:
    return [str(path) for path in Path("/proc").glob("[0-9]*/stat") if _group(path) == group]


def _group(path: Path) -> int:
    try:
        state, _, group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return 0
    # One that nobody has reaped yet does nothing any more.
    return 0 if state == "Z" else int(group)
