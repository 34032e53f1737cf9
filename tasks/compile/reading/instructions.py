"""Reads off a library which features of a processor its code uses, by disassembling all of it.

What a compiler was asked for (`-march`, `ATEN_CPU_CAPABILITY`) is not what came out: with the first
alone AVX-512 was still emitted for an AVX2 target. Encodings and mnemonics are those of Intel's
Software Developer's Manual, volume 2: an EVEX prefix (62h) is AVX-512, a VEX one (C4h, C5h) AVX.

Names and registers are those of the Arm Architecture Reference Manual (DDI 0487), as objdump prints
them: `z` and `p` registers are SVE's, `.8h` and `h` operands of arithmetic half precision's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking

_LIMIT_S = 300


def disassemble(library: Path, disassembler: str, handle_line: Callable[[bytes], None]) -> int:
    """Give each line to `handle_line`, of which there may be millions; return objdump's status."""
    command = [disassembler, "-d", "-w", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            handle_line(line)
        return process.wait(_LIMIT_S)


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

    def handle_line(line: bytes) -> None:
        if match := _LINE.match(line):
            found.update(_instruction_sets_of(*match.groups()))

    if status := disassemble(library, objdump, handle_line):
        raise EnvironmentLacking(
            "the instructions of the package can't be checked",
            expected=f"objdump to read {library.name}",
            got=f"exit code {status}",
            remedy="Run 'objdump -d' on it to see why",
        )
    return tuple(sorted(found))


def _instruction_sets_of(first: bytes, mnemonic: bytes, operands: bytes) -> set[str]:
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


# "   1234:\t4e20d400 \tfadd\tv0.4s, v0.4s, v0.4s": the word, the mnemonic, the operands.
_ARM_LINE = re.compile(rb"^\s*[0-9a-f]+:\t[0-9a-f]{8} \t(\S+)\t?(.*)$")
_FORMAT, _MACHINE = b"file format ", b"elf64-littleaarch64"
# By Linux's names of them (/proc/cpuinfo).
_MNEMONICS = (
    (re.compile(rb"bfdot|bfmmla|bfmlal[bt]|bfcvt"), "bf16"),
    (re.compile(rb"[su]mmla$|usmmla$|usdot|sudot"), "i8mm"),
    (re.compile(rb"[su]dot$"), "asimddp"),
    (re.compile(rb"fml[as]l2?$"), "asimdfhm"),
    (re.compile(rb"fcadd|fcmla"), "fcma"),
    (re.compile(rb"(ld(add|clr|eor|set|smax|smin|umax|umin)|swp|cas)(a|l|al)?[bhp]?$"), "atomics"),
    (re.compile(rb"sqrdml[as]h"), "asimdrdm"),
    (re.compile(rb"crc32"), "crc32"),
    (re.compile(rb"ldapr"), "lrcpc"),
)
_SVE = re.compile(rb"\b[zp][0-9]+(\.[bhsdq]|/[mz])")
_VECTOR = re.compile(rb"\bv[0-9]+\.(16b|8b|8h|4h|4s|2s|2d|1d)|\bq[0-9]+\b")
# Conversions to and from half precision belong to the base; arithmetic on it doesn't.
_HALF = re.compile(rb"f(add|sub|mul|div|mla|mls|madd|msub|max|min|maxnm|minnm|sqrt|abs|neg|cm..?)$")
_HALF_VECTOR, _HALF_SCALAR = re.compile(rb"\bv[0-9]+\.[84]h"), re.compile(rb"^h[0-9]+,")


def find_arm_features(library: Path, disassembler: str) -> tuple[str, ...]:
    """Return the features that the code of `library` uses, as /proc/cpuinfo on ARM64 names them.

    Raises `BlessingRefused` for a file that isn't for ARM64.
    """
    found: set[str] = set()
    machines: set[bytes] = set()

    def handle_line(line: bytes) -> None:
        if match := _ARM_LINE.match(line):
            found.update(features_of(*match.groups()))
        elif _FORMAT in line:
            machines.add(line.rpartition(_FORMAT)[2].strip())

    failed = disassemble(library, disassembler, handle_line) != 0
    if failed or machines != {_MACHINE}:
        raise BlessingRefused(
            f"{library.name} is not a library for ARM64", expected="code that can be disassembled",
            got="another file", remedy="Run again; if it stays, report it with the torch version",
        )  # fmt: skip
    return tuple(sorted(found))


def features_of(mnemonic: bytes, operands: bytes) -> set[str]:
    """Return the features that one instruction needs, beyond the ones that all ARM64 has."""
    found = {name for pattern, name in _MNEMONICS if pattern.match(mnemonic)}
    if _SVE.search(operands):
        found.add("sve")
    elif _VECTOR.search(operands):
        found.add("asimd")
    if _HALF.match(mnemonic):
        if _HALF_VECTOR.search(operands):
            found.add("asimdhp")
        elif _HALF_SCALAR.match(operands):
            found.add("fphp")
    return found
