"""What stands for a release's inputs: our own code among them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.compile import fingerprint


def test_a_change_of_the_cpp_in_packages_is_another_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "own_package", lambda: str(tmp_path))
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


@pytest.mark.parametrize(("target", "is_another"), [("cuda-sm90", True), ("cpu-avx2", False)])
def test_another_triton_makes_another_release_where_kernels_for_a_gpu_are_asked_for(
    target: str, is_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(targets=(target,))

    def of_release() -> str:
        return str(fingerprint.fingerprint_release(digest_bytes(b"delivery"), recipe, "g++"))

    before = of_release()
    monkeypatch.setattr(
        fingerprint, "version", lambda name: "999" if name == "triton" else version(name)
    )
    assert (of_release() != before) == is_another
