"""A factory's name is checked by the sources alone: nothing is imported, and torch least of all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.deliver.naming import require_factory

MODULE = """
raise RuntimeError("imported")
from elsewhere import borrowed
def build(): pass
def build_small(): pass
if True:
    late = build
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module, a package, and modules whose names their source doesn't show."""
    (tmp_path / "mymodel.py").write_text(MODULE)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("")
    (tmp_path / "train" / "ranker.py").write_text("def make(): pass\n")
    (tmp_path / "starred.py").write_text("from mymodel import *\n")
    (tmp_path / "computed.py").write_text("globals()['build'] = print\n")
    (tmp_path / "broken.py").write_text("def build(:\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "net.py").write_text("def build(): pass\n")
    return tmp_path


@pytest.mark.parametrize(
    "factory",
    [
        "mymodel:build", "mymodel:borrowed", "mymodel:late", "train.ranker:make", "starred:build",
        "computed:build", "broken:build", "parts.net:build",
    ],
)  # fmt: skip
def test_what_may_be_there_is_left_to_the_import(folder: Path, factory: str) -> None:
    assert require_factory(factory, folder, ()) == tuple(factory.split(":"))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("mymodle:build", "there is no module mymodle: .* got none named mymodle. Did .* mymodel?"),
        ("train.rankr:make", "no module train.rankr: .* the package train, .* mean train.ranker?"),
        ("nothing.like_it:make", "no module nothing.like_it: .* Name one that is there"),
        ("mymodel:bild", "mymodel has no function bild: .*of build, build_small, .* mean build?"),
        ("train.ranker:mak", "train.ranker has no function mak: .* Did you mean make?"),
        ("ckpt.pt", "ckpt.pt holds weights, and no model: .* handoff deliver train:build"),
        ("runs/best.safetensors", "holds weights, and no model: .*load_state_dict"),
        ("mymodel.py:build", "not the name of a factory: .* Write mymodel:build"),
        ("mymodel.build", "not the name of a factory: .* Write mymodel:build"),
    ],
)  # fmt: skip
def test_what_can_not_be_there_is_reported_with_what_was_meant(
    folder: Path, factory: str, message: str
) -> None:
    with pytest.raises(UsageProblem, match=message):
        require_factory(factory, folder, ())


def test_it_takes_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from handoff.tasks.deliver.naming import *\n"
        f"require_factory('mymodel:build', Path({str(folder)!r}), ())\n"
        "assert 'mymodel' not in sys.modules and 'torch' not in sys.modules, 'imported'\n"
    )
    # What is imported here has imported torch; a process of its own hasn't.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
