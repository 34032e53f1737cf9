"""The pooling operator: eager, the Triton kernel and the C++ function all compute the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from artifacts.gpu import PROFILES
from tasks.cross.build import compile_for
from tasks.kernels import compiler_options
from tasks.kernels.attention_pooling import attention_pooling, composition
from tasks.loading import open_package
from tests.tasks.cross import models
from tests.tasks.kernels.interpret_attention_pooling import ITEMS, KINDS, draw

SETTINGS = (0.5, 0.2, 0.25, -1e9)


class Pooling(nn.Module):
    """The operator alone, with its tables as weights and ids that are a view of a larger input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.kinds = nn.Embedding(ITEMS, width), nn.Embedding(KINDS, width)
        self.gate = nn.Parameter(torch.rand(width))

    def forward(self, ids: Tensor, kinds: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        chosen = ids[:, 1]
        pooled = torch.ops.handoff.attention_pooling(
            self.items.weight, chosen, self.kinds.weight, kinds, self.gate, weight, target,
            chosen > 0, *SETTINGS,
        )  # fmt: skip
        return torch.cat(pooled, 1)


def inputs(rows: int, length: int, width: int) -> tuple[Tensor, ...]:
    given = draw(rows, length, width)
    ids = torch.stack([torch.zeros_like(given["ids"]), given["ids"]], 1)
    return ids, given["kinds"], given["weight"], given["target"]


def test_eager_is_the_composition_with_zeros_where_nothing_is_present() -> None:
    given = draw(4, 9, 12)
    zero = torch.zeros_like(given["weight"])
    want = composition(**given, zero=zero, mix=0.5, slope=0.2, scale=0.25, fill=-1e9)
    got = attention_pooling(*given.values(), *SETTINGS)
    assert all(map(torch.equal, got, want))
    assert torch.equal(got[1][0], torch.zeros(12)), "a row that is all padding"


def test_the_triton_kernel_computes_it_in_tritons_interpreter() -> None:
    # In a process of its own: Triton reads the setting when a kernel is defined.
    program = [sys.executable, "-m", "tests.tasks.kernels.interpret_attention_pooling"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["accepted"] * 4 + ["refused"], "one of them was made wrong"


@pytest.mark.compile
@pytest.mark.parametrize("width", [20, 32])
def test_the_package_computes_it_without_python_and_refuses_ids_outside(
    width: int, tmp_path: Path
) -> None:
    model = Pooling(width).eval()
    example = inputs(6, 50, width)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, example, dynamic_shapes=(batch,) * 4)
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "model.pt2"),
            inductor_configs=compiler_options(program),
        )
    package = open_package(tmp_path / "model.pt2")
    for rows in (1, 17, 64):
        given = inputs(rows, 50, width)
        torch.testing.assert_close(package(given)[0], model(*given))
    for outside in (-1, ITEMS):
        given = inputs(6, 50, width)
        given[0][3, 1, 7] = outside
        with pytest.raises(RuntimeError, match="attention_pooling_cpu"):
            package(given)
    torch.testing.assert_close(package(example)[0], model(*example))


@pytest.mark.compile
@models.needs_known_torch
def test_its_kernel_is_in_packages_for_gpus(tmp_path: Path) -> None:
    model = Pooling(32).eval()
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, inputs(6, 50, 32), dynamic_shapes=(batch,) * 4)
    made = compile_for(program, PROFILES["sm_90"], tmp_path / "out")
    assert "attention_pooling_kernel" in made.inspection.names
    assert made.inspection.capabilities == {90}
