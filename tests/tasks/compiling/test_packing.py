"""Packing: weights of convolutions laid out for oneDNN once, whatever the batch will be."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tasks.compiling.packing import convolutions_packed
from tests.tasks.passes.exporting import export

pytestmark = pytest.mark.compile


class Images(nn.Module):
    """What packs (two plain convolutions, one by channel), and what must not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 32, 3, stride=2)
        self.by_channel = nn.Conv2d(32, 32, 3, groups=32, padding=1)
        self.gate = nn.Conv2d(32, 32, 1)
        self.grey = nn.Conv2d(1, 8, 3)
        self.after_grey = nn.Conv2d(8, 8, 3)
        self.upwards = nn.ConvTranspose2d(32, 8, 3, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = self.by_channel(torch.relu(self.first(x)))
        gated = image * self.gate(image.mean((2, 3), keepdim=True)).sigmoid()
        return self.upwards(gated), self.after_grey(self.grey(x[:, :1]))


class SqueezeAndExcite(nn.Module):
    """Convolutions of a single point, whose layout depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 3)
        self.squeeze = nn.Conv2d(48, 1152, 1)
        self.excite = nn.Conv2d(1152, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = self.first(x)
        gated: Tensor = image * self.excite(self.squeeze(image.mean((2, 3), keepdim=True)))
        return gated


def compiled(
    body: AbstractContextManager[None], folder: Path, model: type[nn.Module] = Images
) -> Path:
    folder.mkdir()
    program = export(model(), torch.randn(6, 3, 33, 33))
    with torch.no_grad(), body:
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs={"freezing": True}
        )
    return Path(path)


def packed_weights(package: Path) -> int:
    with zipfile.ZipFile(package) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return archive.read(name).count(b"cached_torch_layout__mkldnn")


def test_a_dynamic_batch_leaves_right_results_and_packed_weights(tmp_path: Path) -> None:
    usual = compiled(nullcontext(), tmp_path / "usual")
    package = compiled(convolutions_packed(), tmp_path / "packed")
    # Those of the three channels, by channel, and behind the grey one. The gate's is of one point,
    # whose layout depends on the batch; so would the first one's with images of 17 pixels.
    assert packed_weights(package) - packed_weights(usual) == 3
    loaded, eager = torch._inductor.aoti_load_package(str(package)), Images().eval()
    for batch in (1, 2, 6, 64):
        x = torch.randn(batch, 3, 33, 33)
        with torch.no_grad():
            for got, want in zip(loaded(x), eager(x), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_no_call_rearranges_weights_by_the_slow_way(tmp_path: Path) -> None:
    package = compiled(convolutions_packed(), tmp_path / "packed", SqueezeAndExcite)
    program = (
        "import sys, torch\n"
        "loaded = torch._inductor.aoti_load_package(sys.argv[1])\n"
        "with torch.no_grad():\n"
        "    [loaded(torch.randn(batch, 3, 33, 33)) for batch in (1, 2, 6, 64)]\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(package)], capture_output=True, text=True, check=True,
        env={**os.environ, "ONEDNN_VERBOSE": "profile_exec", "OMP_NUM_THREADS": "2"},
    ).stdout  # fmt: skip
    assert "convolution" in told
    assert "reorder,simple" not in told
