"""The key of a compilation: what another package would come of makes another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.digest import Digest
from handoff.artifacts.recipe.target import CpuTarget
from handoff.tasks.compile.caching.cache import compilation_key
from handoff.tasks.compile.messages import CompileJob
from tests.tasks.optimize.passes.exporting import export


class Named(nn.Module):
    """Twice its input, under a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {self.name: x * 2}


def key(name: str = "score", target: CpuTarget | None = None) -> Digest:
    job = CompileJob(Path("program.pt2"), target or CpuTarget("avx2"), Path("package"), {})
    return compilation_key(export(Named(name), torch.ones(3, 2)), job, {"compiler": "g++"})


def test_the_same_program_has_the_same_key_again() -> None:
    assert key() == key()


def test_an_output_of_another_name_is_another_package() -> None:
    assert key("score") != key("rating")


def test_another_target_is_another_package() -> None:
    assert key() != key(target=CpuTarget("avx512"))


def test_another_count_of_threads_is_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    here = key()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 31)
    assert key() != here
