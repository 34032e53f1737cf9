"""Packing: weights of convolutions laid out for oneDNN once, whatever the batch will be."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags
from handoff.tasks.compile.packages import extract_library
from handoff.tasks.compile.packing import block_size, leave_linears_to_mkl, pack_convolutions
from tests.tasks.compile.generated import generate
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.optimize.passes.exporting import export

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


class Deep(nn.Module):
    """Many channels and small images, whose layout depends on the number of threads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 64, 6, stride=3)
        self.second = nn.Conv2d(64, 128, 3, padding=1)
        self.third = nn.Conv2d(128, 128, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))  # type: ignore[no-any-return]


class DeepInBfloat16(nn.Module):
    """The same in bfloat16: the second's layout for AMX is another for one image on 32 threads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 256, 3, stride=2)
        self.second = nn.Conv2d(256, 256, 3, padding=1)
        self.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.bfloat16())).float()  # type: ignore[no-any-return]


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
    program = export(model(), torch.randn(6, 3, 33, 33))
    with body:
        return compile_as_torch_does(program, folder, {"freezing": True})


def packed_weights(package: Path) -> int:
    with zipfile.ZipFile(package) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return archive.read(name).count(b"cached_torch_layout__mkldnn")


@pytest.mark.long
def test_a_dynamic_batch_leaves_right_results_and_packed_weights(tmp_path: Path) -> None:
    usual = compiled(nullcontext(), tmp_path / "usual")
    package = compiled(pack_convolutions(), tmp_path / "packed")
    # Those of the three channels, by channel, behind the grey one, and of the gate, whose blocks
    # for any batch divide each other. The grey one's result looks like one that is laid otherwise.
    assert packed_weights(package) - packed_weights(usual) == 4
    loaded, eager = torch._inductor.aoti_load_package(str(package)), Images().eval()
    for batch in (1, 2, 6, 64):
        x = torch.randn(batch, 3, 33, 33)
        with torch.no_grad():
            for got, want in zip(loaded(x), eager(x), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def rearranged(package: Path, threads: int) -> list[str]:
    """Return oneDNN's lines about what it lays out otherwise, in calls of four batches."""
    library = package.with_name(f"model-{threads}.so")
    extract_library(package, library)
    # Without Inductor, whose import takes longer than the calls.
    program = (
        "import sys, torch\n"
        "torch.set_num_threads(int(sys.argv[2]))\n"
        "loaded = torch._C._aoti.AOTIModelContainerRunnerCpu(sys.argv[1], 1)\n"
        "with torch.no_grad():\n"
        "    [loaded.run([torch.randn(batch, 3, 33, 33)]) for batch in (1, 2, 6, 64)]\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program, str(library), str(threads)], capture_output=True, text=True,
        env={**os.environ, "ONEDNN_VERBOSE": "profile_exec"}, check=True,
    ).stdout  # fmt: skip
    assert "convolution" in output
    return [line for line in output.splitlines() if ",reorder," in line]


Reorders = Callable[..., dict[int, list[str]]]


@pytest.fixture(scope="module")
def reorders(tmp_path_factory: pytest.TempPathFactory) -> Reorders:
    """Return what gives a model's lines by the number of threads; compiled and called once."""

    @cache
    def of(model: type[nn.Module]) -> dict[int, list[str]]:
        folder = tmp_path_factory.mktemp(model.__name__) / "packed"
        package = compiled(pack_convolutions(), folder, model)
        return {threads: rearranged(package, threads) for threads in (2, 16)}

    return of


@pytest.mark.parametrize("model", [pytest.param(SqueezeAndExcite, marks=pytest.mark.long), Deep])
def test_no_call_rearranges_weights_by_the_slow_way(
    model: type[nn.Module], reorders: Reorders
) -> None:
    for lines in reorders(model).values():
        assert not [line for line in lines if ",simple:" in line]


@pytest.mark.skipif(
    "avx512f" not in host_cpu_flags(),
    reason="for AVX2, the first's blocks for one image on 32 threads convert slowly: it is left",
)
def test_where_threads_have_enough_to_do_no_call_rearranges_any_weights(
    reorders: Reorders,
) -> None:
    lines = reorders(Deep)
    assert lines[2] == []
    # Sixteen threads want smaller blocks of one image, for which there is compiled code.
    assert any(",jit:" in line for line in lines[16])


class Perceptron(nn.Module):
    """Linear layers of rows and of sequences, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(33, 16), nn.Linear(16, 8, bias=False)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.second(nn.functional.gelu(self.first(x))).mean((1, 2))
        return self.last(rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("isa", "is_onednn"), [("avx2", False), ("avx512", True)])
def test_linear_layers_are_mkls_where_there_is_no_avx512(isa: Isa, *, is_onednn: bool) -> None:
    program = export(Perceptron(), torch.randn(6, 3, 5, 33))
    wrapper, _ = generate(program, {"freezing": True}, target=CpuTarget(isa))
    assert ("_linear_pointwise(" in wrapper) == is_onednn
    assert (wrapper.count("aoti_torch_cpu_addmm_out(") == 2) == (not is_onednn)
    assert ("aoti_torch_cpu_mm_out(" in wrapper) == (not is_onednn)


def test_what_mkl_computes_of_a_frozen_package_is_what_eager_does(tmp_path: Path) -> None:
    program = export(Perceptron(), torch.randn(6, 3, 5, 33))
    with leave_linears_to_mkl(CpuTarget("avx2")):
        package = compile_as_torch_does(program, tmp_path / "package", {"freezing": True})
    loaded, eager = torch._inductor.aoti_load_package(str(package)), Perceptron().eval()
    for batch in (1, 2, 6, 64):
        x = torch.randn(batch, 3, 5, 33)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), eager(x), rtol=1e-5, atol=1e-6)


class Layout(ctypes.Structure):
    """oneDNN's description of a tensor, as `memory_desc_t` of oneDNN 3 declares it."""

    _fields_: ClassVar = [
        ("kind", ctypes.c_int32), ("ndims", ctypes.c_int32), ("dims", ctypes.c_int64 * 12),
        ("data_type", ctypes.c_int32), ("padded_dims", ctypes.c_int64 * 12),
        ("padded_offsets", ctypes.c_int64 * 12), ("offset0", ctypes.c_int64),
        ("format_kind", ctypes.c_int32), ("strides", ctypes.c_int64 * 12),
        ("inner_nblks", ctypes.c_int32), ("inner_blks", ctypes.c_int64 * 12),
        ("inner_idxs", ctypes.c_int64 * 12),
    ]  # fmt: skip


def laid_in(blocks: list[tuple[int, int]], shape: torch.Size, padded: tuple[int, ...]) -> bytes:
    layout = Layout(ndims=len(shape), inner_nblks=len(blocks))
    layout.dims[:4], layout.padded_dims[:4] = shape, padded
    layout.inner_blks[: len(blocks)] = [size for size, _ in blocks]
    layout.inner_idxs[: len(blocks)] = [axis for _, axis in blocks]
    return bytes(layout)


def test_blocks_for_amx_are_known_of_bfloat16_alone() -> None:
    shape = torch.Size((48, 40, 3, 3))
    tiles = laid_in([(16, 1), (32, 0), (2, 1)], shape, (64, 64, 3, 3))
    assert block_size(tiles, shape, torch.bfloat16) == 32
    assert block_size(tiles, shape, torch.float32) == 0
    for others in ([(8, 1), (16, 0), (2, 1)], [(64, 0), (2, 1)], [(16, 0)], [(16, 1), (32, 0)]):
        layout = laid_in(others, shape, tuple(shape))
        assert block_size(layout, shape, torch.bfloat16) == 0, others


@pytest.mark.skipif("amx_bf16" not in host_cpu_flags(), reason="the processor has no AMX")
def test_on_amx_no_call_rearranges_weights_in_bfloat16(tmp_path: Path) -> None:
    package = compiled(pack_convolutions(), tmp_path / "packed", DeepInBfloat16)
    weights = ",256x256x3x3,"
    for threads, wanted in ((2, False), (32, True)):
        lines = rearranged(package, threads)
        assert not [line for line in lines if ",simple:" in line]
        # One image on 32 threads has smaller blocks, for which there is compiled code.
        assert any(weights in line and ",jit:" in line for line in lines) == wanted


def test_a_layout_that_is_not_known_here_is_none() -> None:
    shape = torch.Size((64, 16, 3, 3))
    weights = torch.randn(shape)
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        weights, [1, 1], [1, 1], [1, 1], 1, [64, 16, 14, 14]
    )
    layout = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist())
    assert block_size(layout, shape, torch.float32) in (16, 24, 32, 48, 64)
    assert block_size(layout, shape, torch.bfloat16) == 0
    assert block_size(layout, torch.Size((64, 16, 3, 1)), torch.float32) == 0
    assert block_size(layout[:100], shape, torch.float32) == 0
