"""A package for GPUs of several generations: machine code of each kernel for each, by the bytes."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.artifacts.machine.gpu import KIB, PROFILES
from handoff.artifacts.recipe.target import CudaTarget, require_target
from handoff.tasks.compile.cross import fatbinary, toolkit
from handoff.tasks.compile.cross.assembling import Assembler, assemble, require_room
from handoff.tasks.compile.cross.build import CrossBuildResult, compile_for, require_kernels_for
from handoff.tasks.compile.cross.driver import KernelResources
from handoff.tasks.compile.cross.fatbinary import find_fatbinary
from handoff.tasks.compile.cross.inspect_binary import inspect_binary, read_elf
from handoff.tasks.compile.machine.vector_isa import restrict_vector_isa
from tests.tasks.compile.cross import models

pytestmark = [
    models.needs_known_torch,
    pytest.mark.skipif(
        find_fatbinary() is None or not toolkit.can_add_ptx(),
        reason="NVIDIA's fatbinary is not installed, or this torch needs nvcc",
    ),
]
TARGET = require_target("cuda-sm80+sm90")
assert isinstance(TARGET, CudaTarget)
A100, H100 = TARGET.profiles


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel that was compiled: its name, what Triton made of it, and its warps."""

    name: str
    binary: Any
    warps: int


@dataclass(frozen=True)
class Both:
    """The package for both, and what was assembled on the way."""

    built: CrossBuildResult
    kept: tuple[CompiledKernel, ...]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The small network for an A100 and an H100; once for all tests of this file."""
    kept: list[CompiledKernel] = []
    assemble = Assembler.assemble_further

    def note(self: Assembler, name: str, binary: Any, warps: int) -> Any:
        kept.append(CompiledKernel(name, binary, warps))
        return assemble(self, name, binary, warps)

    folder = tmp_path_factory.mktemp("both") / "package"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Assembler, "assemble_further", note)
        # Other processes compile the same network, and Inductor's names are by its code.
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder.with_name("place")))
        # As in a release: else Inductor compiles a test program for each level, for each place.
        with restrict_vector_isa(CudaTarget(80).host):
            built = compile_for(models.two_layers(), A100, folder, further=(H100,))
    return Both(built, tuple(kept))


@pytest.mark.compile
def test_each_kernel_has_machine_code_for_each_and_the_ptx_of_the_lowest(both: Both) -> None:
    found = {(k.name, k.kind, k.capability) for k in both.built.inspection.kernels}
    names = [kernel.name for kernel in both.built.kernels]
    assert len(names) == 2
    images = [("cubin", 80), ("cubin", 90), ("ptx", 80)]
    assert found == {(name, *image) for name, image in product(names, images)}
    require_kernels_for((A100, H100), both.built.kernels, inspect_binary(both.built.package))


@pytest.mark.compile
def test_what_a_kernel_takes_of_each_further_gpu_is_known(both: Both) -> None:
    for kernel in both.built.kernels:
        (further,) = kernel.further
        assert further.capability == 90
        assert 0 < further.registers <= 255
        assert str(further) == f"{further.registers} registers for sm_90"


@pytest.mark.compile
def test_the_assembler_is_called_as_triton_calls_it(both: Both) -> None:
    """For the lowest capability the same machine code comes out, byte for byte."""
    for kept in both.kept:
        ptx = str(kept.binary.asm["ptx"])
        own = assemble(kept.name, ptx, kept.binary.metadata, 80)
        assert own == kept.binary.asm["cubin"]
        assert own != assemble(kept.name, ptx, kept.binary.metadata, 90)


@pytest.mark.compile
def test_what_an_assembler_does_not_take_is_refused(both: Both) -> None:
    (first, *_) = both.kept
    with pytest.raises(BlessingRefused, match=f"{first.name} can't be assembled for sm_80"):
        assemble(first.name, "no PTX", first.binary.metadata, 80)


def without_image(package: Path, number: int, capability: int, copy: Path) -> Path:
    """Copy a package without the machine code for `capability` in its fat binary `number`."""
    with zipfile.ZipFile(package) as archive, zipfile.ZipFile(copy, "w") as written:
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename.endswith(".so"):
                data = _leave_out(data, number, capability)
            written.writestr(info, data)
    return copy


def _leave_out(library: bytes, number: int, capability: int) -> bytes:
    at = -1
    for _ in range(number + 1):
        at = library.index(b"\x50\xed\x55\xba\x01\x00\x10\x00", at + 1)
    size = struct.unpack_from("<Q", library, at + 8)[0]
    kept, left_out, place = [], 0, at + 16
    while place < at + 16 + size:
        kind, header, held = struct.unpack_from("<H2xIQ", library, place)
        image = library[place : place + header + held]
        if kind == 2 and read_elf(image[header:]).capability == capability:
            left_out += 1
        else:
            kept.append(image)
        place += header + held
    assert left_out == 1
    body = b"".join(kept)
    head = library[at : at + 8] + struct.pack("<Q", len(body))
    return library[:at] + (head + body).ljust(16 + size, b"\0") + library[at + 16 + size :]


@pytest.mark.compile
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("number", [0, 1])
def test_a_package_that_lacks_a_kernel_s_code_for_one_gpu_is_refused(
    number: int, capability: int, both: Both, tmp_path: Path
) -> None:
    planted = without_image(both.built.package, number, capability, tmp_path / "model.pt2")
    found = inspect_binary(planted)
    (lacking,) = both.built.inspection.names - {
        kernel.name
        for kernel in found.kernels
        if (kernel.kind, kernel.capability) == ("cubin", capability)
    }
    message = f"machine code of {lacking} for sm_{capability}, got that for sm_{170 - capability}"
    with pytest.raises(BlessingRefused, match=message):
        require_kernels_for((A100, H100), both.built.kernels, found)


@pytest.mark.compile
def test_a_package_that_holds_another_gpu_s_code_is_refused(both: Both) -> None:
    found = both.built.inspection
    with pytest.raises(BlessingRefused, match="2 kernels for sm_80, got 2 for sm_80, sm_90"):
        require_kernels_for((A100,), both.built.kernels, found)
    (first, *_) = both.built.kernels
    with pytest.raises(BlessingRefused, match=r"machine code of \w+ for sm_89, got that for sm_80"):
        require_kernels_for((A100, PROFILES["sm_89"], H100), [*both.built.kernels], found)
    with pytest.raises(BlessingRefused, match="1 kernels for sm_80 and sm_90, got 2"):
        require_kernels_for((A100, H100), [first], found)


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "message"),
    [
        (64, 4, 48 * KIB, ""),
        (64, 32, 99 * KIB, ""),
        (64, 4, 100 * KIB, f"at most {99 * KIB} bytes of shared memory, got {100 * KIB}"),
        (65, 32, 0, "at most 65536 registers, got 66560"),
        (32, 64, 0, "at most 1024 threads, got 2048"),
    ],
)
def test_a_block_has_to_fit_each_gpu(registers: int, warps: int, shared: int, message: str) -> None:
    taken = KernelResources("triton_0", 86, registers, 0)

    def check() -> None:
        require_room("triton_0", taken, warps, shared, PROFILES["sm_86"])

    if not message:
        check()
        return
    with pytest.raises(BlessingRefused, match=f"a block of triton_0 doesn't fit sm_86.*{message}"):
        check()


def never(*_: object, **__: object) -> None:
    pytest.fail("it was compiled")


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (
            lambda patch: patch.setattr(fatbinary, "find_fatbinary", lambda: None),
            "expected NVIDIA's fatbinary, got none.*pip install nvidia-cuda-nvcc",
        ),
        (
            lambda patch: patch.setattr(toolkit, "can_add_ptx", lambda: False),
            r"expected torch 2\.13 or newer, .*Name one GPU in each target",
        ),
        (
            lambda patch: patch.setattr(
                "triton.backends.nvidia.compiler.get_ptxas",
                lambda capability: SimpleNamespace(path="/bin/true" if capability < 90 else "gone"),
            ),
            "Triton has no assembler for sm_90",
        ),
    ],
    ids=["fatbinary", "torch", "ptxas"],
)
def test_what_it_takes_is_asked_for_before_anything_is_compiled(
    remove: Callable[[pytest.MonkeyPatch], None], message: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    program = models.two_layers()
    remove(monkeypatch)
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", never)
    with pytest.raises(EnvironmentLacking, match=message):
        compile_for(program, A100, tmp_path / "package", further=(H100,))
