"""What stands for a release's inputs: our own code among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import fingerprint


def test_a_change_of_the_cpp_in_packages_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "__file__", str(tmp_path / "tasks" / "fingerprint.py"))
    digest = fingerprint.own_code.__wrapped__
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "step.py").write_text("pass\n", encoding="utf-8")
    alone = digest()
    (tmp_path / "tasks" / "kernel.cpp").write_text("int one;\n", encoding="utf-8")
    beside = digest()
    (tmp_path / "tasks" / "kernel.cpp").write_text("int two;\n", encoding="utf-8")
    (tmp_path / "tasks" / "notes.txt").write_text("nothing that is run\n", encoding="utf-8")
    changed = digest()
    assert len({alone, beside, changed}) == 3
    (tmp_path / "tasks" / "notes.txt").unlink()
    assert digest() == changed
