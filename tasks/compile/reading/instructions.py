"""Reads off a shared library which instruction sets it uses, by disassembling all of its code.

What a compiler was told (`-march`, `ATEN_CPU_CAPABILITY`) is not what came out: with the first
alone AVX-512 was still emitted for an AVX2 target. Encodings and mnemonics are those of Intel's
Software Developer's Manual, volume 2: an EVEX prefix (62h) is AVX-512, a VEX one (C4h, C5h) AVX.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.tasks.compile.reading.disassembly import read_code

# "  1234:\t62 f1 7c 48 58 c1  \tvaddps %zmm1,%zmm0,%zmm0": the bytes, the mnemonic, the operands.
_LINE = re.compile(rb"^\s*[0-9a-f]+:\t([0-9a-f]{2})[^\t]*\t(?:\{vex\} )?(\S+)\s*(.*)$")
# Beyond the base of each encoding; the flags are those of /proc/cpuinfo.
_EVEX = (
    (re.compile(rb"vdpbf16ps|vcvtne2?ps2bf16"), "avx512_bf16"),
    (re.compile(rb"vpdp(bu|ww|wu|ss|su|uu)"), "avx512_vnni"),
    (re.compile(rb"v\w+(ph|sh)$"), "avx512_fp16"),
    (re.compile(rb"vpopcnt[dq]$"), "avx512_vpopcntdq"),
    (re.compile(rb"vpmadd52"), "avx512ifma"),
    (re.compile(rb"vpermb$|vpermt2b|vpermi2b|vpmultishift"), "avx512_vbmi"),
)
_VEX = (
    (re.compile(rb"tdpbf16"), "amx_bf16"),
    (re.compile(rb"tdpb[su][su]d"), "amx_int8"),
    (re.compile(rb"tdpfp16"), "amx_fp16"),
    (re.compile(rb"ldtilecfg|tilezero|tileload|tilestored|tilerelease"), "amx_tile"),
    (re.compile(rb"vpdp(bu|ww)"), "avx_vnni"),
    (re.compile(rb"vf[n]?m(add|sub)"), "fma"),
    (re.compile(rb"vcvtph2ps|vcvtps2ph"), "f16c"),
)
# 512-bit conversions of half precision belong to AVX-512 itself.
_EVEX_BASE = {b"vcvtph2ps", b"vcvtps2ph"}


def find_instruction_sets(library: Path) -> tuple[str, ...]:
    """Return the instruction sets that the code of `library` uses, as /proc/cpuinfo names them.

    `avx512f` stands for the AVX-512 of the psABI's x86-64-v4, `avx` and `avx2` for what their
    encoding shows. Raises `EnvironmentLacking` without a disassembler.
    """
    objdump = shutil.which("objdump")
    if objdump is None:
        raise EnvironmentLacking(
            "the instructions of the package can't be checked",
            expected="objdump, which comes with every g++ (binutils)",
            got="none on the PATH",
            remedy="Install binutils and run the same command again",
        )
    found: set[str] = set()

    def take(line: bytes) -> None:
        if matched := _LINE.match(line):
            found.update(_sets_of(*matched.groups()))

    if code := read_code(library, objdump, take):
        raise EnvironmentLacking(
            "the instructions of the package can't be checked",
            expected=f"objdump to read {library.name}",
            got=f"exit code {code}",
            remedy="Run 'objdump -d' on it to see why",
        )
    return tuple(sorted(found))


def _sets_of(first: bytes, mnemonic: bytes, operands: bytes) -> set[str]:
    """Return what one instruction asks for; `first` is its first byte."""
    if first == b"62":
        special = {flag for pattern, flag in _EVEX if pattern.match(mnemonic)}
        return {"avx512f"} | (special if mnemonic not in _EVEX_BASE else set())
    if first in (b"c4", b"c5"):
        if b"%k" in operands:
            return {"avx512f"}
        special = {flag for pattern, flag in _VEX if pattern.match(mnemonic)}
        if special:
            return special | ({"amx_tile"} if b"%tmm" in operands else set())
        # Whole numbers in 256 bits came with AVX2, floating point with AVX.
        wide = b"%ymm" in operands and (mnemonic.startswith(b"vp") or b"i128" in mnemonic)
        return {"avx2"} if wide or mnemonic.startswith(b"vgather") else {"avx"}
    return set()
