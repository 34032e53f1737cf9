"""The systemd unit: systemd itself accepts it, whatever the home is called."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.stack.unit import write_unit


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def complaints(file: Path, runtime: Path) -> list[str]:
    """Return what systemd says against a unit; skips where systemd isn't there."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed here")
    found = subprocess.run(
        [verify, "verify", "--user", "--man=no", str(file)], capture_output=True, text=True,
        check=False, env={"XDG_RUNTIME_DIR": str(runtime), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    lines = [line for line in found.stderr.splitlines() if "handoff" in line]
    if found.returncode and not lines:
        pytest.skip(f"systemd-analyze checks no unit here: {found.stderr[:200]}")
    return lines


@pytest.mark.parametrize("name", ["home", "of 100 % and $HOME", 'with "quotes" and \\'])
def test_systemd_reads_the_home_and_both_commands(name: str, tmp_path: Path) -> None:
    file, following = write_unit(tmp_path / name, for_system=False)
    assert file == tmp_path / "config" / "systemd" / "user" / "handoff.service"
    assert following.startswith("systemctl --user enable")
    text = file.read_text()
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    assert f'Environment="HANDOFF_HOME={tmp_path / escaped}"\n' in text
    assert "password" not in text.lower()
    assert complaints(file, tmp_path) == []
    file.write_text(text.replace('ExecStart="', 'ExecStart="/no/such'))
    assert complaints(file, tmp_path) != []


def test_its_commands_run_from_any_folder(tmp_path: Path) -> None:
    file, _ = write_unit(tmp_path, for_system=False)
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("ExecStart=")]
    command = shlex.split(line.removeprefix("ExecStart="))
    assert command[0] == sys.executable
    assert command[-3:] == ["up", "--use", "kept"]
    result = subprocess.run(
        [*command[:-3], "--version"], cwd="/", capture_output=True, text=True, check=True
    )
    assert re.match(r"[0-9]+\.[0-9]+\.[0-9]+", result.stdout)


def test_what_a_unit_can_not_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="a unit can't hold that"):
        write_unit(tmp_path / "two\nlines", for_system=False)
    assert not (tmp_path / "config").exists()


def test_a_folder_that_can_not_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(EnvironmentLacking, match="the unit can't be written"):
        write_unit(tmp_path, for_system=False)
