"""A worker is let finish: what its container waits for before it is told to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.stack.stack_files import STACK
from tests.limits import LIMIT_S

# A container has process numbers of its own; on this machine others may run flows, too.
_CONTAINED = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
_DRAIN = """
import subprocess, sys, time
drained = [sys.executable, sys.argv[1], "drained"]
def ask(limit):
    return subprocess.run([*drained, limit], capture_output=True, text=True)
idle = ask("5")
assert (idle.returncode, idle.stdout) == (0, "drained\\n"), idle
run = subprocess.Popen([sys.executable, "-m", "handoff.infra.prefect.flow_run"])
time.sleep(0.5)
busy = ask("1.5")
assert busy.returncode == 1 and f"still under way: [{run.pid}]" in busy.stderr, busy
waiting = subprocess.Popen([*drained, "30"])
time.sleep(1.5)
assert waiting.poll() is None
run.kill()
run.wait()
assert waiting.wait(timeout=10) == 0
print("as expected")
"""


def test_draining_waits_for_the_flow_runs_of_its_container(tmp_path: Path) -> None:
    if subprocess.run([*_CONTAINED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine gives its users no namespaces")
    room = tmp_path / "handoff" / "infra" / "prefect"
    room.mkdir(parents=True)
    for folder in (room, room.parent, room.parents[1]):
        (folder / "__init__.py").touch()
    (room / "flow_run.py").write_text("import time\ntime.sleep(60)\n")
    seen = subprocess.run(
        [*_CONTAINED, sys.executable, "-c", _DRAIN, str(STACK / "prepare.py")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert seen.stdout.endswith("as expected\n"), seen.stderr
