"""Levels: what a process is held to, so that it computes as the level's machines do."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from handoff.artifacts.recipe import target
from handoff.artifacts.recipe.target import (
    ArmTarget,
    CpuTarget,
    CudaTarget,
    Isa,
    Target,
    describe_host_cpu,
    isa_level_variables,
    isa_limit_variables,
)

LEVELS: tuple[Isa, ...] = ("avx2", "avx2-vnni", "avx512", "avx512-vnni", "avx512-bf16", "amx")
ZEN_4 = CpuTarget("avx512-bf16").cpu_flags | {"avx512_vnni"}
SAPPHIRE_RAPIDS = CpuTarget("amx").cpu_flags | {"avx_vnni"}
HASWELL = CpuTarget("avx2").cpu_flags


@pytest.mark.parametrize(
    ("flags", "held", "capability", "level"),
    [
        (SAPPHIRE_RAPIDS, CpuTarget("avx512-bf16"), "avx512", "AVX512_CORE_BF16"),
        (SAPPHIRE_RAPIDS, CpuTarget("avx512"), "avx512", "AVX512_CORE"),
        (SAPPHIRE_RAPIDS, CpuTarget("avx2-vnni"), "avx2", "AVX2_VNNI"),
        (ZEN_4, CpuTarget("avx512-vnni"), "avx512", "AVX512_CORE_VNNI"),
        (ZEN_4, CpuTarget("avx2"), "avx2", "AVX2"),
        (ZEN_4, CudaTarget(90), "avx2", "AVX2"),
    ],
)
def test_below_the_machines_level_a_process_is_held_to_the_targets(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], held: Target, capability: str,
    level: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(target, "host_cpu_flags", lambda: flags)
    assert isa_limit_variables(held) == {
        "ATEN_CPU_CAPABILITY": capability,
        "ONEDNN_MAX_CPU_ISA": level,
        "MKL_ENABLE_INSTRUCTIONS": capability.upper(),
    }


@pytest.mark.parametrize(
    ("flags", "free"),
    [
        (SAPPHIRE_RAPIDS, CpuTarget("amx")), (ZEN_4, CpuTarget("avx512-bf16")),
        (HASWELL, CpuTarget("avx2")), (HASWELL, CudaTarget(90)), (ZEN_4, ArmTarget("v8.2")),
    ],
)  # fmt: skip
def test_at_the_machines_level_and_under_an_emulator_none_is_held(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str], free: Target
) -> None:
    monkeypatch.setattr(target, "host_cpu_flags", lambda: flags)
    assert isa_limit_variables(free) == {}


@pytest.mark.parametrize("flags", [SAPPHIRE_RAPIDS, HASWELL])
def test_a_script_for_another_machine_holds_any_of_them_to_the_level(
    monkeypatch: pytest.MonkeyPatch, flags: frozenset[str]
) -> None:
    monkeypatch.setattr(target, "host_cpu_flags", lambda: flags)
    assert isa_level_variables(CpuTarget("avx2")) == {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
    assert isa_level_variables(ArmTarget("v8.2")) == {"ATEN_CPU_CAPABILITY": "default"}


def test_processors_of_one_name_are_told_apart_by_what_they_can_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "host_cpu_model", lambda: "Intel(R) Xeon(R) Processor")
    descriptions = set()
    for flags in (SAPPHIRE_RAPIDS, ZEN_4, HASWELL, HASWELL):
        monkeypatch.setattr(target, "host_cpu_flags", lambda flags=flags: flags)
        descriptions.add(describe_host_cpu())
    assert len(descriptions) == 3


def test_onednn_has_another_level_for_each_that_this_machine_has() -> None:
    import torch

    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    # The levels are read at the first computation: what imports torch forks one for each.
    program = (
        "import json, os, sys, torch\n"
        "for environment in json.load(sys.stdin):\n"
        "    if child := os.fork():\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        continue\n"
        "    os.environ.update(environment)\n"
        "    torch.set_num_threads(1)\n"
        "    torch.nn.functional.conv2d(torch.ones(2, 8, 32, 32), torch.ones(8, 8, 3, 3))\n"
        "    break\n"
    )
    here = [one for one in map(CpuTarget, LEVELS) if one.cpu_flags <= target.host_cpu_flags()]
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        input=json.dumps([{**isa_limit_variables(one), "ONEDNN_VERBOSE": "1"} for one in here]),
    )  # fmt: skip
    levels = re.findall("cpu,isa:(.*)", ended.stdout)
    assert len(set(levels)) == len(levels) == len(here), levels
