"""What a compiler that makes no mistake would make of a program, in a package's place."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.loading import Tensors

Package = Callable[[Tensors], Tensors]
_LIBRARY = b"the library"


def compile_program(program: Path) -> Package:
    """Return what calls the program that lies there, of float32 inputs alone, as a package does."""
    module = load_program(program).module(check_guards=False)

    def package(inputs: Tensors) -> Tensors:
        if inputs[0].dtype is not torch.float32:
            raise RuntimeError("unmatched dtype")
        with torch.no_grad():
            return flatten_tensors(module(*inputs))

    return package


def install_package(monkeypatch: pytest.MonkeyPatch, package: Package, folder: Path) -> None:
    """Let verification find `package` in the files that are written to the folder."""
    for name in ("open_shared_library", "open_package"):
        monkeypatch.setattr(verify, name, lambda *_: package)
    folder.mkdir(exist_ok=True)
    (folder / "model.so").write_bytes(_LIBRARY)
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr("model/data/wrapper.so", _LIBRARY)
