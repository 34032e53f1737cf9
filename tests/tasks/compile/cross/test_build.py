"""Building: packages for GPUs that aren't here, by the bytes; or a refusal, and no package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused, UsageProblem
from handoff.artifacts.machine.gpu import PROFILES
from handoff.artifacts.recipe.target import CudaTarget, parse_target
from handoff.tasks.compile import step
from handoff.tasks.compile.cross import build
from handoff.tasks.compile.cross.build import CrossBuildResult, compile_for
from handoff.tasks.compile.cross.fatbinary import find_fatbinary
from handoff.tasks.compile.cross.toolkit import (
    can_add_ptx,
    find_toolkit,
    write_driver_stub,
)
from handoff.tasks.compile.machine.vector_isa import restrict_vector_isa
from handoff.tasks.compile.messages import CompileJob, CompileResult
from handoff.tasks.optimize.programs import save_program
from tests.tasks.compile.cross import models
from tests.tasks.compile.cross.packages import embedded_weights, members
from tests.tasks.compile.cross.state import state
from tests.tasks.verify.interpret.checking import compiled_sources

pytestmark = [models.needs_known_torch, pytest.mark.compile]


class Tied(nn.Module):
    """Tied weights, a constant and an unusual stride: what could be embedded twice, or turned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.table.weight
        self.turned = nn.Parameter(torch.randn(6, 32).t())

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.table(ids)) @ self.turned
        return scores * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


class Scatter(nn.Module):
    """Adds rows to where ids say, `[N, 5]` to `[N, 8]`, which takes atomic additions."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        zeros = torch.zeros(x.shape[0], 8, dtype=x.dtype, device=x.device)
        return zeros.scatter_add(1, ids, x)


class Both(nn.Module):
    """Both, since each package takes the compiler many seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.scatter = Tied(), Scatter()

    def forward(self, ids: Tensor, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        return self.tied(ids), self.scatter(x, places)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return models.two_layers()


@pytest.fixture(scope="module")
def tied_and_scattering() -> ExportedProgram:
    rows = torch.randn(8, 5).bfloat16()
    return models.exported(Both(), torch.arange(8), rows, torch.randint(0, 8, (8, 5)))


@dataclass(frozen=True)
class Released:
    """A package as a release has it compiled, and what the release learns of it."""

    built: CrossBuildResult
    result: CompileResult


@pytest.fixture(scope="module")
def released(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """The small network for an H100."""
    folder, packages = tmp_path_factory.mktemp("h100"), []

    def keep(*args: Any, **options: Any) -> CrossBuildResult:
        built = compile_for(*args, **options)
        # It goes with its place.
        kept = shutil.copytree(built.package.parent, folder / "sm_90")
        packages.append(replace(built, package=Path(kept, built.package.name)))
        return built

    save_program(program, folder / "program.pt2")
    target = parse_target("cuda-sm90")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_for", keep)
        patch.setattr(step, "can_compile", lambda _target: False)
        result = step.run(CompileJob(folder / "program.pt2", target, folder / "package", {}))
    return Released(packages[0], result)


@pytest.fixture(scope="module")
def built(released: Released) -> CrossBuildResult:
    return released.built


@dataclass(frozen=True)
class Second:
    """A package that was made after another, and what torch was like before and afterwards."""

    built: CrossBuildResult
    place: Path
    before: dict[str, object]
    after: dict[str, object]


@pytest.fixture(scope="module")
def second(
    built: CrossBuildResult,
    tied_and_scattering: ExportedProgram,
    tmp_path_factory: pytest.TempPathFactory,
) -> Second:
    """Another network for an A100, compiled in a place of its own."""
    assert built.kernels
    folder = tmp_path_factory.mktemp("a100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "place"))
        before = state()
        # As in a release: else Inductor compiles a test program for each level, for each place.
        with restrict_vector_isa(CudaTarget(80).host):
            made = compile_for(tied_and_scattering, PROFILES["sm_80"], folder / "sm_80")
        return Second(made, folder / "place", before, state())


def test_the_binary_says_which_gpu_it_is_for(built: CrossBuildResult, second: Second) -> None:
    for made, capability, count in ((built, 90, 2), (second.built, 80, 3)):
        assert made.inspection.capabilities == {capability}
        assert len(made.kernels) == len(made.inspection.kernels) == count
        assert {kernel.name for kernel in made.kernels} == made.inspection.names
        assert made.size_bytes == made.package.stat().st_size
        assert [path.name for path in made.package.parent.iterdir()] == ["model.pt2"]
        for text in members(made.package, "_metadata.json"):
            metadata = json.loads(text)
            assert metadata["AOTI_DEVICE_KEY"] == "cuda"
            assert metadata["AOTI_COMPUTE_CAPABILITY"] == str(capability)


def test_a_release_learns_what_each_kernel_in_the_package_was_compiled_from(
    released: Released, program: ExportedProgram
) -> None:
    sources = released.result.sources
    assert sources == tuple(kernel.source for kernel in released.built.kernels)
    assert {source.name for source in sources} == released.built.inspection.names
    assert sources == compiled_sources(program, "cuda-sm90")


def test_the_library_loads_the_driver_and_torch(built: CrossBuildResult) -> None:
    assert {"libcuda.so.1", "libtorch_cuda.so"} <= set(built.inspection.needed)


def test_every_symbol_of_the_library_is_found_when_it_is_loaded(
    built: CrossBuildResult, tmp_path: Path
) -> None:
    """With the stub in the driver's place: the library asks for nothing else that isn't there."""
    stub = write_driver_stub(find_toolkit(PROFILES["sm_90"]).compiler, tmp_path)
    stub.rename(tmp_path / "libcuda.so.1")
    path = tmp_path / "model.so"
    path.write_bytes(members(built.package, ".so")[0])
    # RTLD_NOW: all symbols at once, not each when it is first called.
    code = "import ctypes, os, sys, torch; ctypes.CDLL(sys.argv[1], os.RTLD_NOW)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_batch_stays_dynamic(built: CrossBuildResult) -> None:
    (code,) = members(built.package, "wrapper.cpp")
    assert re.search(rb"int64_t (s\d+) = arg\w+_size\[0\];", code)


def test_what_is_kept_of_a_kernel_is_read_off_its_binary(built: CrossBuildResult) -> None:
    assert all(8 <= kernel.registers <= 255 for kernel in built.kernels)
    assert all(kernel.spills == 0 and kernel.candidates >= 1 for kernel in built.kernels)
    assert all(0 < kernel.resident_warps <= 64 for kernel in built.kernels)


def test_the_weights_are_embedded_each_its_own(
    built: CrossBuildResult, program: ExportedProgram
) -> None:
    found = embedded_weights(built.package)
    assert found.keys() == program.state_dict.keys()
    for name, tensor in program.state_dict.items():
        assert found[name] == tensor.detach().numpy().tobytes(), name


def test_torch_and_the_process_are_as_before(second: Second) -> None:
    assert second.after == second.before


@pytest.mark.long
def test_the_same_bytes_come_out_where_the_place_is_the_same(
    tied_and_scattering: ExportedProgram, second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = second.built.package
    first = made.read_bytes()
    shutil.rmtree(second.place)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(second.place))
    with restrict_vector_isa(CudaTarget(80).host):
        compile_for(tied_and_scattering, PROFILES["sm_80"], made.parent)
    assert made.read_bytes() == first


@pytest.mark.parametrize("option", ["freezing", "max_autotune", "shape_padding"])
def test_refuses_options_that_need_a_gpu(
    program: ExportedProgram, tmp_path: Path, option: str
) -> None:
    with pytest.raises(UsageProblem, match=f"{option} can't be had where there is no GPU"):
        compile_for(program, PROFILES["sm_90"], tmp_path / "out", options={option: True})
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_folder_as_it_was(
    program: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.pt2").write_text("an earlier one")
    (tmp_path / "out.building").mkdir()

    def fail(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fail)
    with pytest.raises(BlessingRefused, match=r"compile the model for sm_90: .*disk is full"):
        compile_for(program, PROFILES["sm_90"], folder)
    assert (folder / "model.pt2").read_text() == "an earlier one"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_refuses_a_package_with_kernels_for_another_gpu(
    built: CrossBuildResult,
    program: ExportedProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_another(_program: object, *, package_path: str, inductor_configs: object) -> None:
        assert inductor_configs
        Path(package_path).write_bytes(built.package.read_bytes())

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", write_another)
    with pytest.raises(BlessingRefused, match="expected 0 kernels for sm_80, got 2 for sm_90"):
        compile_for(program, PROFILES["sm_80"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_same_process_still_compiles_for_the_cpu(
    built: CrossBuildResult, program: ExportedProgram, tmp_path: Path
) -> None:
    assert built.package.exists()
    path = tmp_path / "cpu.pt2"
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        x = torch.randn(5, 16)
        package = torch._inductor.aoti_load_package(str(path))
        torch.testing.assert_close(package(x), program.module()(x))


WITH_PTX = find_fatbinary() is not None and can_add_ptx()


@pytest.fixture(scope="module")
def scattering(
    second: Second, tied_and_scattering: ExportedProgram, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, CrossBuildResult]:
    """That network for an A100 and an H100; the latter with PTX, where it can be had here."""
    folder = tmp_path_factory.mktemp("scatter") / "sm_90"
    made = compile_for(tied_and_scattering, PROFILES["sm_90"], folder, ptx=WITH_PTX)
    return {"sm_80": second.built, "sm_90": made}


@pytest.mark.parametrize(("slug", "kernels"), [("sm_80", 1), ("sm_90", 2)])
def test_what_a_gpu_can_not_do_is_left_to_torch(
    slug: str, kernels: int, scattering: dict[str, CrossBuildResult]
) -> None:
    """An A100 has no atomic addition of bfloat16: torch's own kernel adds, after one for zeros."""
    made = scattering[slug]
    assert len([kernel for kernel in made.kernels if "scatter" in kernel.name]) == kernels
    # Beside the two of the tied weights.
    assert len(made.kernels) == kernels + 2
    (code,) = members(made.package, "wrapper.cpp")
    assert (b"aoti_torch_cuda_scatter_reduce" in code) is (kernels == 1)


def kinds(made: CrossBuildResult) -> list[tuple[str, int, str]]:
    return [(kernel.kind, kernel.capability, kernel.specific) for kernel in made.inspection.kernels]


needs_ptx = pytest.mark.skipif(
    not WITH_PTX, reason="NVIDIA's fatbinary is not installed, or this torch needs nvcc"
)


@needs_ptx
def test_ptx_lies_beside_the_machine_code(scattering: dict[str, CrossBuildResult]) -> None:
    assert kinds(scattering["sm_90"]) == [("cubin", 90, ""), ("ptx", 90, "a")] * 4
    assert kinds(scattering["sm_80"]) == [("cubin", 80, "")] * 3


@needs_ptx
@pytest.mark.long
def test_ptx_for_an_a100_is_for_newer_ones_too(program: ExportedProgram, tmp_path: Path) -> None:
    made = compile_for(program, PROFILES["sm_80"], tmp_path / "sm_80", ptx=True)
    assert kinds(made) == [("cubin", 80, ""), ("ptx", 80, "")] * 2


def test_tied_weights_are_embedded_once_and_strides_are_kept(
    scattering: dict[str, CrossBuildResult],
) -> None:
    # As those that were compiled: seeded.
    model = Tied()
    found = embedded_weights(scattering["sm_90"].package)
    values = set(found.values())
    assert len(found) == len(values) == 3
    table, turned = model.table.weight.detach(), model.turned.detach()
    assert table.numpy().tobytes() in values
    assert turned.t().numpy().tobytes() in values
    assert torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).numpy().tobytes() in values
