"""Reading binaries: what ptxas and fatbinary wrote, and what nobody could have."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from handoff.artifacts.machine.gpu import PROFILES, GpuProfile
from handoff.tasks.compile.cross.driver import read_resources
from handoff.tasks.compile.cross.fatbinary import find_fatbinary
from handoff.tasks.compile.cross.inspect_binary import (
    MAGIC,
    EmbeddedKernel,
    inspect_binary,
    inspect_bytes,
    read_elf,
)
from handoff.tasks.compile.cross.toolkit import find_toolkit
from tests.tasks.compile.cross.models import needs_known_torch

needs_fatbinary = pytest.mark.skipif(
    find_fatbinary() is None, reason="NVIDIA's fatbinary is not installed"
)

# A kernel that keeps an array in local memory, since an index picks the element.
PTX = """
.version 8.0
.target {target}
.address_size 64
.visible .entry scale(.param .u64 data, .param .u32 index)
{{
    .local .align 4 .b8 kept[64];
    .reg .u64 %rd<6>; .reg .u32 %r<4>; .reg .f32 %f<4>;
    ld.param.u64 %rd1, [data]; cvta.to.global.u64 %rd2, %rd1;
    ld.param.u32 %r1, [index]; mov.u64 %rd3, kept; mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4; ld.global.f32 %f1, [%rd2]; st.local.f32 [%rd5], %f1;
    ld.local.f32 %f2, [%rd3+4]; add.f32 %f3, %f2, %f1; st.global.f32 [%rd2], %f3;
    ret;
}}
"""


def assemble(profile: GpuProfile, folder: Path) -> tuple[Path, Path, str]:
    """Return the kernel's PTX and cubin for a GPU, and what ptxas says of it."""
    ptx, cubin = folder / f"{profile.slug}.ptx", folder / f"{profile.slug}.cubin"
    target = "sm_90" if profile.capability == 100 else profile.slug
    ptx.write_text(PTX.format(target=target))
    command = [str(find_toolkit(profile).ptxas), "-v", f"-arch={profile.slug}"]
    done = subprocess.run(
        [*command, str(ptx), "-o", str(cubin)], check=True, capture_output=True, text=True
    )
    return ptx, cubin, done.stderr


@needs_known_torch
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_reads_from_a_cubin_what_ptxas_said(profile: GpuProfile, tmp_path: Path) -> None:
    _, cubin, said = assemble(profile, tmp_path)
    (kernel,) = inspect_binary(cubin).kernels
    assert kernel == EmbeddedKernel("scale", "cubin", profile.capability)
    found = read_resources(cubin.read_bytes())
    registers = re.search(r"Used (\d+) registers", said)
    frame = re.search(r"(\d+) bytes stack frame", said)
    assert registers
    assert frame
    assert (found.registers, found.frame_bytes) == (int(registers[1]), int(frame[1]))
    assert found.frame_bytes >= 64


def make_fat(folder: Path, ptx: Path, cubin: Path, *, compress: bool) -> Path:
    """Return a fat binary of both, as NVIDIA's tool makes it."""
    fat = folder / "kernels.fatbin"
    images = [f"--image3=kind={k},sm=80,file={f}" for k, f in (("elf", cubin), ("ptx", ptx))]
    options = [f"--create={fat}", "-64", f"--compress={str(compress).lower()}", *images]
    subprocess.run([str(find_fatbinary()), *options], check=True)
    return fat


@needs_known_torch
@needs_fatbinary
def test_reads_fat_binaries(tmp_path: Path) -> None:
    ptx, cubin, _ = assemble(PROFILES["sm_80"], tmp_path)
    fat = make_fat(tmp_path, ptx, cubin, compress=False)
    assert inspect_binary(fat).kernels == (
        EmbeddedKernel("scale", "cubin", 80),
        EmbeddedKernel("scale", "ptx", 80, "", "8.0"),
    )
    with pytest.raises(ValueError, match="whole fat binary, got one that is cut off"):
        inspect_bytes(fat.read_bytes()[:-100])


@needs_known_torch
@needs_fatbinary
def test_refuses_fat_binaries_that_are_compressed(tmp_path: Path) -> None:
    ptx, cubin, _ = assemble(PROFILES["sm_80"], tmp_path)
    ptx.write_text(ptx.read_text() + "// what is worth compressing\n" * 500)
    fat = make_fat(tmp_path, ptx, cubin, compress=True)
    with pytest.raises(ValueError, match="plain cubins and PTX in a fat binary, got one compresse"):
        inspect_binary(fat)


@needs_known_torch
def test_finds_kernels_of_two_gpus_in_one_library(tmp_path: Path) -> None:
    names = ("sm_80", "sm_90")
    cubins = [assemble(PROFILES[name], tmp_path)[1].read_bytes() for name in names]
    # Bytes that begin like an ELF file, as weights may: they are no kernel.
    decoy = MAGIC + bytes(100)
    source = tmp_path / "data.c"
    values = ",".join(str(byte) for byte in cubins[0] + decoy + cubins[1])
    source.write_text(f"const unsigned char data[] = {{{values}}};\n")
    library = tmp_path / "data.so"
    compiler = find_toolkit(PROFILES["sm_80"]).compiler
    command = [compiler, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    package = tmp_path / "model.pt2"
    with zipfile.ZipFile(package, "w") as archive:
        archive.write(library, "model/data/model.so")
        archive.writestr("model/data/notes.txt", cubins[0])
    for path in (library, package):
        found = inspect_binary(path)
        assert [kernel.capability for kernel in found.kernels] == [80, 90]
        assert found.capabilities == {80, 90}
        assert found.names == {"scale"}


@needs_known_torch
def test_refuses_a_cubin_that_is_cut_off_or_of_an_unknown_version(tmp_path: Path) -> None:
    cubin = assemble(PROFILES["sm_80"], tmp_path)[1].read_bytes()
    with pytest.raises(ValueError, match="whole ELF file, got one"):
        inspect_bytes(cubin[:-40])
    with pytest.raises(ValueError, match="ABI version 7 or 8, got 99"):
        inspect_bytes(cubin[:8] + bytes([99]) + cubin[9:])


def test_refuses_what_is_no_binary(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"weights")
    with pytest.raises(ValueError, match="expected a package, an ELF file, a fat binary or PTX"):
        inspect_binary(path)
    with pytest.raises(ValueError, match="expected a 64-bit little-endian ELF file"):
        read_elf(b"\x7fELF\x01\x01\x01" + bytes(60))


def test_reads_the_target_of_ptx() -> None:
    text = PTX.format(target="sm_90a").encode()
    assert inspect_bytes(text).kernels == (EmbeddedKernel("scale", "ptx", 90, "a", "8.0"),)
    assert inspect_bytes(text).capabilities == frozenset()


def test_a_library_without_kernels_has_none() -> None:
    import torch

    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    found = inspect_binary(library)
    assert found.kernels == ()
    assert "libc.so.6" in found.needed
