"""Instruction sets are read off what a compiler emitted, whatever it was asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.tasks.compile.reading.instructions import find_instruction_sets

_SOURCE = """
#include <immintrin.h>
extern "C" void run(float* x, int* n) { %s }
"""

# A statement, the flags that it is compiled with, and what has to be found in the result.
CODE = {
    "scalar": ("x[0] += x[1];", "", set()),
    "floats of 256 bits": (
        "_mm256_storeu_ps(x, _mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)));",
        "-mavx", {"avx"},
    ),
    "whole numbers of 256 bits": (
        "_mm256_storeu_si256((__m256i*)n, _mm256_add_epi32(*(__m256i*)n, *(__m256i*)(n + 8)));",
        "-mavx2", {"avx2"},
    ),
    "a fused multiplication": (
        "_mm256_storeu_ps(x, _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), "
        "_mm256_loadu_ps(x + 16)));",
        "-mavx -mfma", {"fma"},
    ),
    "floats of 512 bits": (
        "_mm512_storeu_ps(x, _mm512_add_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)));",
        "-mavx512f", {"avx512f"},
    ),
    "AVX-512 of 256 bits": (
        "_mm256_storeu_si256((__m256i*)n, _mm256_rol_epi32(*(__m256i*)n, 3));",
        "-mavx512f -mavx512vl", {"avx512f"},
    ),
    "bfloat16": (
        "_mm512_storeu_si512(n, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x), "
        "_mm512_loadu_ps(x + 16)));",
        "-mavx512f -mavx512bf16", {"avx512f", "avx512_bf16"},
    ),
    "whole-number dot products": (
        "_mm512_storeu_si512(n, _mm512_dpbusd_epi32(_mm512_loadu_si512(n), "
        "_mm512_loadu_si512(n + 16), _mm512_loadu_si512(n + 32)));",
        "-mavx512f -mavx512vnni", {"avx512f", "avx512_vnni"},
    ),
    "tiles": (
        "_tile_loadconfig(n); _tile_zero(0); _tile_dpbf16ps(0, 1, 2); _tile_dpbusd(0, 1, 2);",
        "-mamx-tile -mamx-bf16 -mamx-int8", {"amx_tile", "amx_bf16", "amx_int8"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_each_level_is_known_by_its_code(name: str, tmp_path: Path) -> None:
    statement, flags, expected = CODE[name]
    source, library = tmp_path / "code.cpp", tmp_path / "code.so"
    source.write_text(_SOURCE % statement)
    subprocess.run(
        ["g++", "-O2", "-shared", "-fPIC", *flags.split(), str(source), "-o", str(library)],
        check=True,
    )
    found = set(find_instruction_sets(library))
    assert expected <= found
    assert found - expected <= {"avx", "avx2"}, "nothing beyond what was written"
    if not expected:
        assert not found


def test_a_missing_disassembler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentLacking, match="objdump"):
        find_instruction_sets(tmp_path / "library.so")


def test_what_is_no_library_is_reported(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_text("no library")
    with pytest.raises(EnvironmentLacking, match=r"library\.so"):
        find_instruction_sets(tmp_path / "library.so")
