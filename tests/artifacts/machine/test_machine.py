"""What a package asks of a machine's C library and its driver, and which machines are refused."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.machine.elf import host_glibc, needed_glibc, parse_version
from handoff.artifacts.machine.gpu import MINIMUM_DRIVERS
from handoff.artifacts.recipe import target
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from tests.limits import LIMIT_S

# The `.symver` asks for a version by name, so that the file doesn't depend on the building machine.
SOURCE = """
__asm__(".symver newer, {symbol}");
extern void newer(void);
void call(void) {{ newer(); }}
"""


def build_library(folder: Path, symbol: str = "") -> Path:
    """Compile a small library, which asks for `symbol` (`memcpy@GLIBC_2.14`) and no other."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source, library = folder / "library.c", folder / "library.so"
    source.write_text(SOURCE.format(symbol=symbol) if symbol else "int one(void) { return 1; }\n")
    command = ["gcc", "-shared", "-fPIC", "-nostartfiles", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return library


@pytest.mark.parametrize(
    ("symbol", "version"), [("memcpy@GLIBC_2.14", "2.14"), ("memcpy@GLIBC_2.2.5", "2.2.5")]
)
def test_the_glibc_that_a_library_needs_is_read_from_it(
    tmp_path: Path, symbol: str, version: str
) -> None:
    assert needed_glibc(build_library(tmp_path, symbol)) == version


def test_the_newest_of_several_is_told_by_number_and_not_by_letter() -> None:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    asked = subprocess.run(
        ["readelf", "-V", str(library)], capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    versions = set(re.findall(r"Name: GLIBC_([\d.]+)", asked))
    assert len(versions) > 2
    assert needed_glibc(library) == max(versions, key=parse_version)


def test_a_library_that_uses_nothing_of_glibc_needs_none(tmp_path: Path) -> None:
    assert needed_glibc(build_library(tmp_path)) == ""


def test_what_is_no_library_or_is_cut_off_is_told(tmp_path: Path) -> None:
    library = build_library(tmp_path, "memcpy@GLIBC_2.14")
    whole = library.read_bytes()
    for size in (0, 10, 64, len(whole) // 2, len(whole) - 1):
        library.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="a whole ELF file, got one that is cut off"):
            needed_glibc(library)
    library.write_bytes(b"#!/bin/sh\n" * 20)
    with pytest.raises(ValueError, match="64-bit little-endian ELF file, got other bytes"):
        needed_glibc(library)


def test_a_machine_with_an_older_glibc_is_refused() -> None:
    assert Fit((), "2.15.0", platform.machine(), glibc=host_glibc()).misfit("2.15.0") is None
    reason = Fit((), "2.15.0", platform.machine(), glibc="9.9").misfit("2.15.0")
    assert reason == f"it needs glibc 9.9 or newer, and this is {host_glibc()}"


def test_glibcs_are_compared_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handoff.artifacts.recipe.compatibility.host_glibc", lambda: "2.9")
    assert "glibc 2.10" in str(Fit((), "2.15.0", platform.machine(), glibc="2.10").misfit(None))
    monkeypatch.setattr("handoff.artifacts.recipe.compatibility.host_glibc", lambda: "2.35")
    assert Fit((), "2.15.0", platform.machine(), glibc="2.9").misfit(None) is None


@pytest.mark.parametrize(
    ("cuda", "driver", "reason"),
    [
        ("13.0", (13, 0), None),
        ("13.1", (13, 0), None),
        ("12.8", (13, 0), None),
        ("13.0", (12, 8), "an NVIDIA driver 580 or newer (it was built with CUDA 13.0)"),
        ("12.8", (11, 4), "an NVIDIA driver 525.60.13 or newer"),
        ("11.8", (10, 2), "an NVIDIA driver 450.80.02 or newer"),
        ("14.0", (13, 0), "an NVIDIA driver for CUDA 14"),
    ],
)
def test_a_driver_serves_its_cudas_major_version_and_those_before(
    cuda: str, driver: tuple[int, int], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "handoff.artifacts.recipe.compatibility.host_gpu_capabilities", lambda: (90,)
    )
    monkeypatch.setattr("handoff.artifacts.recipe.compatibility.host_cuda", lambda: driver)
    misfit = Fit((), "2.15.0", platform.machine(), gpu_capability=90, cuda=cuda).misfit("2.15.0")
    assert (misfit is None) == (reason is None)
    if reason:
        assert misfit is not None
        assert reason in misfit
        assert misfit.endswith(f"the driver here is for CUDA {driver[0]}.{driver[1]}")


def test_the_runner_names_the_same_drivers() -> None:
    source = Path(__file__).parents[3] / "infra" / "runner" / "release.cpp"
    text = source.read_text()
    for major, driver in MINIMUM_DRIVERS.items():
        assert f'case {major}: return "an NVIDIA driver {driver} or newer";' in text


def test_a_record_without_the_versions_is_read_and_written_as_it_was() -> None:
    old = {"cpu_flags": ["avx2"], "torch": "2.15.0", "machine": "x86_64"}
    fit = from_plain(Fit, old)
    assert (fit.glibc, fit.cuda) == ("", "")
    assert to_plain(fit) == old
    with pytest.raises(RecordInvalid, match=r"expected a version like 2\.34, got 'new'"):
        from_plain(Fit, {**old, "glibc": "new"})


ARM_CPUINFO = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: 0x41

processor\t: 1
"""


@pytest.fixture
def arm_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this machine answer as an ARM64 one does, as far as Linux tells."""
    read = Path.read_text

    def read_text(path: Path, *args: Any, **kwargs: Any) -> str:
        return ARM_CPUINFO if str(path) == "/proc/cpuinfo" else read(path, *args, **kwargs)

    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(Path, "read_text", read_text)
    for cached in (target._read_cpuinfo, target.host_cpu_flags):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (target._read_cpuinfo, target.host_cpu_flags):
        cached.cache_clear()


@pytest.mark.usefixtures("arm_host")
def test_on_arm64_a_package_fits_by_what_linux_calls_its_features() -> None:
    level = target.ArmTarget("v8.2")
    fit = Fit(tuple(sorted(level.cpu_flags)), "2.15.0", "aarch64")
    assert fit.misfit("2.15.0") is None
    assert "sve" in str(Fit(("asimd", "sve"), "2.15.0", "aarch64").misfit("2.15.0"))
    assert "x86_64 processor" in str(Fit(("avx2",), "2.15.0", "x86_64").misfit("2.15.0"))
    assert target.parse_target("cpu") == level
    assert not level.is_emulated


def test_elsewhere_a_package_for_arm64_does_not_fit_and_is_emulated() -> None:
    if platform.machine() == "aarch64":
        pytest.skip("this is one")
    misfit = Fit(("asimd",), "2.15.0", "aarch64").misfit("2.15.0")
    assert misfit is not None
    assert "aarch64 processor" in misfit
    assert target.parse_target("arm64-v8.2") == target.ArmTarget("v8.2")
    assert target.ArmTarget("v8.2").is_emulated
