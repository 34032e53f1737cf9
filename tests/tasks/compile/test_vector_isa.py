"""Inductor's descriptions of levels: whole whoever asked before, and whichever way."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX512

from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags
from handoff.tasks.compile.machine.vector_isa import vector_isa


@pytest.mark.compile
@pytest.mark.parametrize("isa", ["avx512-bf16", "amx"])
def test_a_level_has_its_bfloat16_however_often_and_by_whomever_it_was_asked_for(
    isa: Isa, tmp_path: Path
) -> None:
    if not CpuTarget(isa).cpu_flags <= host_cpu_flags():
        pytest.skip(f"this machine has no {isa}")
    # Torch's own descriptions, of which it remembers that they are usable.
    torchs = VecAMX() if isa == "amx" else VecAVX512()
    assert bool(torchs)
    for shared in (None, tmp_path / "one", tmp_path / "another"):
        assert "-mavx512bf16" in vector_isa(isa, shared).build_arch_flags()


def test_plain_avx512_has_no_bfloat16() -> None:
    if not CpuTarget("avx512").cpu_flags <= host_cpu_flags():
        pytest.skip("this machine has no avx512")
    assert "bf16" not in vector_isa("avx512").build_arch_flags()
