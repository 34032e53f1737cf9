"""What stands for a release's inputs: our own code among them."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.isolation import own_package
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.compile import fingerprint
from handoff.tasks.steps import ROWS


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A house of a step, what it imports, one that it starts, and what none of them names."""
    files = {
        "artifacts/__init__.py": "",
        "artifacts/limits.py": "LIMIT = 1\n",
        "tasks/__init__.py": "",
        "tasks/step/__init__.py": "",
        "tasks/step/run.py": "from handoff.artifacts import limits\n\nhandoff.artifacts.limits\n",
        "tasks/step/late.py": "",
        "tasks/step/source.cpp": "int one;\n",
        "tasks/step/notes.txt": "",
        "tasks/child/__init__.py": "",
        "tasks/child/program.py": "from handoff.tasks.rest import everything\n",
        "tasks/rest/__init__.py": "",
        "tasks/rest/everything.py": "",
        "tasks/pictures/__init__.py": "",
        "tasks/pictures/draw.py": "from handoff.tasks.step import run\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    start = tmp_path / "tasks/step/run.py"
    start.write_text(start.read_text() + 'isolated_command("handoff.tasks.child.program")\n')
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "is_another"),
    [
        ("tasks/step/run.py", True),
        ("artifacts/limits.py", True),
        ("tasks/step/source.cpp", True),
        ("tasks/child/program.py", True),
        ("tasks/rest/everything.py", True),
        ("tasks/pictures/draw.py", False),
        ("tasks/step/late.py", False),
        ("tasks/step/notes.txt", False),
    ],
)
def test_a_change_of_what_a_step_runs_is_another_code_and_of_nothing_else(
    changed: str, is_another: bool, house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "own_package", lambda: str(house))
    digest = fingerprint.digest_sources.__wrapped__
    before = digest("tasks.step.run")
    with (house / changed).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert (digest("tasks.step.run") != before) == is_another


def test_a_release_is_made_by_what_judges_it_and_not_by_what_draws_it() -> None:
    root = Path(own_package())
    steps = [f"tasks.{row.module_path}" for row in ROWS if row.shapes_release]
    shaping = {p.relative_to(root).as_posix() for p in fingerprint.find_sources(root, steps)}
    assert {
        "artifacts/recipe/tolerance.py", "tasks/verify/compare.py",
        "tasks/intake/source.py", "tasks/optimize/passes/fold_constants.py",
        "tasks/optimize/kernels/attention.py", "tasks/compile/cross/build.py",
    } <= shaping  # fmt: skip
    rooms = {"/".join(name.split("/")[:2]) for name in shaping}
    assert not rooms & {"tasks/report", "tasks/nightly", "tasks/propose", "artifacts/mlflow"}
    for row in ROWS:
        module = Path(root, "tasks", *row.module_path.split("."))
        assert module.is_dir() or module.with_suffix(".py").is_file(), row.name


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
