"""Reads off a library for ARM64 which of the processor's features its code uses.

Names and registers are those of the Arm Architecture Reference Manual (DDI 0487), as objdump prints
them: `z` and `p` registers are SVE's, `.8h` and `h` operands of arithmetic half precision's.
"""

from __future__ import annotations

import re
from pathlib import Path

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.compile.reading.disassembly import read_code

# "   1234:\t4e20d400 \tfadd\tv0.4s, v0.4s, v0.4s": the word, the mnemonic, the operands.
_LINE = re.compile(rb"^\s*[0-9a-f]+:\t[0-9a-f]{8} \t(\S+)\t?(.*)$")
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

    def take(line: bytes) -> None:
        if matched := _LINE.match(line):
            found.update(features_of(*matched.groups()))
        elif _FORMAT in line:
            machines.add(line.rpartition(_FORMAT)[2].strip())

    failed = read_code(library, disassembler, take) != 0
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
