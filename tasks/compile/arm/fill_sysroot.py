"""Fill the folder of ARM64's libraries: `python -m handoff.tasks.compile.arm.fill_sysroot WHEELS`.

WHEELS is a folder that torch's wheel for ARM64 was unpacked into, those of the CUDA libraries that
it links, and psycopg2's, which brings OpenSSL along: the C++ runner takes digests with it. What
isn't needed to compile and run packages for a processor is left there: Python's files, and CUDA's
part of torch, which would ask for gigabytes more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.files.writing import replace_folder
from handoff.tasks.compile.arm.sysroot import (
    COMPILERS,
    PACKAGES,
    TORCH_FILE,
    find_program,
    sysroot_folder,
)

# Debian's folder of the C and C++ libraries that its cross compiler links.
_CROSS = Path("/usr/aarch64-linux-gnu/lib")
_SYSTEM = (
    "ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0",
    "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6",
)  # fmt: skip
_TORCH = (
    "libc10.so", "libtorch_cpu.so", "libarm_compute.so", "libarm_compute_graph.so", "libgomp.so.1",
    "libgfortran.so.5", "libnvpl_blas_core.so.0", "libnvpl_blas_lp64_gomp.so.0",
    "libnvpl_lapack_core.so.0", "libnvpl_lapack_lp64_gomp.so.0",
)  # fmt: skip
_CUDA = ("libcudart.so.13", "libcupti.so.13")
_OPENSSL = "libcrypto.so.3"
# What OpenSSL asks of zlib to compress TLS with, which nothing does here: each of them fails.
_ZLIB = "\n".join(
    f"int {name}(void) {{ return -6; }}"
    for name in (
        "compress", "deflate", "deflateEnd", "deflateInit_", "inflate", "inflateEnd",
        "inflateInit_", "uncompress",
    )
) + '\nconst char* zError(int code) { (void)code; return "no zlib"; }\n'  # fmt: skip
# An emulated program reads what it runs on out of these files, which the host has for its own
# processor. torch doesn't start without them: those of a Neoverse N1 with one core.
_MACHINE = {
    "proc/cpuinfo": """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

""",  # noqa: E501 - as the kernel writes it
    "sys/devices/system/cpu/present": "0\n",
    "sys/devices/system/cpu/possible": "0\n",
    "sys/devices/system/cpu/online": "0\n",
    "sys/devices/system/cpu/cpu0/regs/identification/midr_el1": "0x00000000413fd0c1\n",
}


def main() -> None:
    """Fill the folder from the wheels that the command line names, whole or not at all."""
    fill(Path(sys.argv[1]), sysroot_folder())


def fill(wheels: Path, folder: Path) -> None:
    """Move what is needed of the unpacked `wheels` to `folder`, and put the system's beside it.

    Raises `EnvironmentLacking` without the cross compiler and its libraries.
    """
    compiler = find_program(COMPILERS)
    if compiler is None or not (_CROSS / _SYSTEM[0]).exists():
        raise EnvironmentLacking(
            "the folder of ARM64's libraries can't be filled",
            expected=f"{COMPILERS[0]} on the PATH, and its libraries in {_CROSS}",
            got="none", remedy=f"Debian: apt-get install {PACKAGES}",
        )  # fmt: skip
    staging = folder.with_name(folder.name + ".building")
    shutil.rmtree(staging, ignore_errors=True)
    libraries = staging / "lib"
    libraries.mkdir(parents=True)
    for name in _SYSTEM:
        shutil.copyfile(_CROSS / name, libraries / name)
    for name in _TORCH:
        shutil.move(wheels / "torch" / "lib" / name, libraries / name)
    for name in _CUDA:
        shutil.move(next(wheels.glob(f"nvidia/*/lib/{name}")), libraries / name)
    (openssl,) = wheels.glob("psycopg2_binary.libs/libcrypto-*.so.3")
    shutil.move(openssl, libraries / _OPENSSL)
    shutil.move(wheels / "torch" / "include", staging / "include")
    (libraries / "ld-linux-aarch64.so.1").chmod(0o755)
    for name, text in _MACHINE.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(text, encoding="ascii")
    _write_stand_ins(compiler, libraries)
    (dist_info,) = wheels.glob("torch-*.dist-info")
    wheel = dist_info.name.removeprefix("torch-").removesuffix(".dist-info")
    (staging / TORCH_FILE).write_text(wheel.partition("+")[0] + "\n", encoding="ascii")
    replace_folder(staging, folder)


def _write_stand_ins(compiler: str, libraries: Path) -> None:
    """Write a `libtorch.so` that loads `libtorch_cpu.so` alone, as the one of a CPU build does.

    The wheel's loads CUDA's part, too. Packages name it, and take nothing else from it. Beside it
    lies what OpenSSL is linked with in place of zlib.
    """
    subprocess.run(
        [
            compiler, "-shared", "-nostdlib", "-Wl,-soname,libz.so.1", "-xc", "-", "-o",
            str(libraries / "libz.so.1"),
        ],
        input=_ZLIB.encode(), check=True, timeout=120,
    )  # fmt: skip
    subprocess.run(
        [
            compiler, "-shared", "-nostdlib", "-Wl,-soname,libtorch.so", "-Wl,--no-as-needed",
            "-Wl,--allow-shlib-undefined", f"-L{libraries}", "-ltorch_cpu", "-lc10",
            "-o", str(libraries / "libtorch.so"),
        ],
        check=True, timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    main()
