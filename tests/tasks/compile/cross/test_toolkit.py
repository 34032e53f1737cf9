"""The tools: another torch is refused with a sentence, and so is what is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.machine.gpu import PROFILES
from handoff.tasks.compile.cross import fatbinary, toolkit
from handoff.tasks.compile.cross.inspect_binary import read_elf
from handoff.tasks.compile.cross.simulated_gpu import pretend_gpu
from tests.tasks.compile.cross.models import needs_known_torch

H100 = PROFILES["sm_90"]


@pytest.mark.parametrize("known", ["2.14.0", "2.16.0.dev20261101+cu132"])
def test_refuses_another_torch(monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    monkeypatch.setattr(torch, "__version__", known)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    with (
        pytest.raises(
            EnvironmentLacking, match=r"expected a CUDA build .*2\.15\.0.*got torch 2\.1"
        ),
        pretend_gpu(H100),
    ):
        pytest.fail("it was taken")


def test_refuses_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(EnvironmentLacking, match="which was built without CUDA"):
        toolkit.find_toolkit(H100)


@needs_known_torch
def test_refuses_another_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "version", lambda _name: "3.5.1")
    with pytest.raises(EnvironmentLacking, match=r"got torch [0-9.]+ with triton 3\.5\.1"):
        toolkit.find_toolkit(H100)


@needs_known_torch
def test_finds_everything_in_the_wheels_that_torch_depends_on() -> None:
    found = toolkit.find_toolkit(H100)
    packages = Path(torch.__file__).parent.parent
    assert all(folder.is_relative_to(packages) for folder in found.headers)
    assert found.ptxas.is_relative_to(packages)
    assert found.fatbinary is None


@needs_known_torch
def test_names_the_headers_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    include = tmp_path / "cu13" / "include"
    (include / "crt").mkdir(parents=True)
    (include / "crt" / "host_defines.h").touch()
    (include / "cuda.h").write_text("#define CUDA_VERSION 13020\n")
    monkeypatch.setattr(toolkit, "_package_folders", lambda _name: [tmp_path])
    with pytest.raises(EnvironmentLacking, match=r"got no cuda_runtime_api\.h, nv/target"):
        toolkit.find_toolkit(H100)
    # Headers of another CUDA are none.
    (include / "cuda.h").write_text("#define CUDA_VERSION 12090\n")
    with pytest.raises(EnvironmentLacking, match=r"got no cuda\.h, cuda_runtime_api\.h, crt/"):
        toolkit.find_toolkit(H100)


@needs_known_torch
def test_refuses_without_an_assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import triton.backends.nvidia.compiler as backend  # type: ignore[import-untyped,unused-ignore]

    gone = SimpleNamespace(path=str(tmp_path / "ptxas"))
    monkeypatch.setattr(backend, "get_ptxas", lambda _capability: gone)
    with pytest.raises(EnvironmentLacking, match="Triton has no assembler for sm_90"):
        toolkit.find_toolkit(H100)


@needs_known_torch
def test_refuses_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> NoReturn:
        raise RuntimeError("No C++ compiler")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
    with pytest.raises(EnvironmentLacking, match="no C\\+\\+ compiler was found"):
        toolkit.find_toolkit(H100)


@needs_known_torch
@pytest.mark.skipif(not toolkit.can_add_ptx(), reason="this torch needs nvcc for it")
def test_asks_for_fatbinary_only_where_ptx_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbinary, "find_fatbinary", lambda: None)
    assert toolkit.find_toolkit(H100).fatbinary is None
    message = (
        "no fat binaries can be made .* expected NVIDIA's fatbinary, got none.*nvidia-cuda-nvcc"
    )
    with pytest.raises(EnvironmentLacking, match=message):
        toolkit.find_toolkit(H100, ptx=True)


@needs_known_torch
def test_the_stub_makes_a_library_load_the_driver(tmp_path: Path) -> None:
    compiler = toolkit.find_toolkit(H100).compiler
    stub = toolkit.write_driver_stub(compiler, tmp_path)
    source = tmp_path / "user.c"
    source.write_text("void cuLaunchKernel(void); void run(void) { cuLaunchKernel(); }\n")
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-Wl,--as-needed", str(source)]
    library = tmp_path / "user.so"
    subprocess.run([*command, f"-L{stub.parent}", "-lcuda", "-o", str(library)], check=True)
    assert "libcuda.so.1" in read_elf(library.read_bytes()).needed


def test_refuses_a_compiler_that_makes_no_library(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="false makes no shared library"):
        toolkit.write_driver_stub("false", tmp_path)
