"""Where our own processes import from: what is there, and what nobody has to make."""

from __future__ import annotations

import site
from pathlib import Path

import pytest

import handoff
from handoff.artifacts.isolation import import_folders


def test_folders_of_packages_that_python_names_and_that_are_not_there_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Debian's Python answers in an environment of its own, which has the first alone.
    there, absent = tmp_path / "lib/python3.11/site-packages", tmp_path / "local/lib/python3.11"
    there.mkdir(parents=True)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(there), str(absent)])
    found = import_folders()
    assert there in found
    assert absent not in found
    assert Path(handoff.__file__).parent in found
    assert all(folder.is_dir() for folder in found)
