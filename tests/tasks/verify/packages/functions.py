"""Functions in the place of packages, and the reference that they are compared with."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.verify import reference
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.messages import ReferenceJob, VerifyJob, VerifyResult
from tests.tasks.deliveries import write_delivery

Package = Callable[[Tensors], Tensors]


LIBRARY = b"the library"


class Masked(nn.Module):
    """NaN wherever the input is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 0, torch.full_like(x, math.nan), x)


def make_reference(tmp_path: Path, module: nn.Module) -> Path:
    """Return the file of the reference of `module`, made the way a release makes it."""
    delivery = write_delivery(tmp_path / "delivery", module.eval(), {"x": torch.randn(6, 8)})
    take_in(IntakeJob(delivery, tmp_path / "staging"))
    job = ReferenceJob(tmp_path / "staging", None, VerifyPlan(seeds=1), tmp_path / "reference.pt")
    return reference.run(job).file


def verify_functions(
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    library: Package,
    package: Package | None = None,
    recipe: Recipe = Recipe(),  # noqa: B008 - a frozen value
    *,
    inside: bytes = LIBRARY,
    staging: Path | None = None,
    atomic_sums: tuple[str, ...] = (),
) -> VerifyResult:
    """Return the verdict on two functions in the place of `model.so` and `model.pt2`."""

    def checked(inputs: Tensors) -> Tensors:
        # As every package that is shipped does.
        if inputs[0].dtype is not torch.float32:
            raise RuntimeError("unmatched dtype")
        return library(inputs)

    package = package or library
    monkeypatch.setattr(verify, "open_shared_library", lambda *_: checked)
    monkeypatch.setattr(verify, "open_package", lambda *_: package)
    (file.parent / "model.so").write_bytes(LIBRARY)
    with zipfile.ZipFile(file.parent / "model.pt2", "w") as archive:
        archive.writestr("model/data/wrapper.so", inside)
    job = VerifyJob(
        file.parent, file, recipe, outputs=("scores",), staging=staging, atomic_sums=atomic_sums
    )
    return verify.run(job)


def masked(inputs: Tensors) -> Tensors:
    """What a package of `Masked` gives."""
    return (Masked()(*inputs),)


def affine(inputs: Tensors) -> Tensors:
    return (inputs[0] * 2.0 + 1.0,)


def affine_reference(tmp_path: Path) -> Path:
    class Affine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2.0 + 1.0

    return make_reference(tmp_path, Affine())
