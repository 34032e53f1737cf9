"""Choosing a configuration: occupancy as the programming guide has it, and the rule's cases."""

from __future__ import annotations

import pytest

from handoff.artifacts.machine.gpu import KIB, PROFILES, GpuProfile
from handoff.tasks.compile.cross.kernels import Candidate, choose, resident_warps

A100, A10 = PROFILES["sm_80"], PROFILES["sm_86"]


def candidate(registers: int = 32, spills: int = 0, shared: int = 0, warps: int = 4) -> Candidate:
    return Candidate(registers, spills, shared, warps)


@pytest.mark.parametrize(
    ("kernel", "profile", "warps"),
    [
        (candidate(registers=32), A100, 64),
        # 65 536 registers, of which a warp takes 64 times 32.
        (candidate(registers=64), A100, 32),
        # 65 registers of 32 threads are given as 2304: 7 blocks of four such warps.
        (candidate(registers=65), A100, 28),
        (candidate(registers=255, warps=8), A100, 8),
        # 81 KiB and the reserved one: two blocks fit 164 KiB.
        (candidate(shared=81 * KIB), A100, 8),
        (candidate(shared=82 * KIB), A100, 4),
        # A block of one warp: 32 blocks at most on an A100, 16 on an A10.
        (candidate(warps=1), A100, 32),
        (candidate(warps=1), A10, 16),
        (candidate(), A10, 48),
    ],
)
def test_counts_the_warps_that_a_multiprocessor_holds(
    kernel: Candidate, profile: GpuProfile, warps: int
) -> None:
    assert resident_warps(kernel, profile) == warps


@pytest.mark.parametrize(
    ("candidates", "kept"),
    [
        ([candidate()], 0),
        # Inductor's order holds among those that are good enough, better occupancy or not.
        ([candidate(registers=64), candidate(registers=32)], 0),
        # Less than half of the best's warps.
        ([candidate(registers=65), candidate(registers=32)], 1),
        ([candidate(spills=17), candidate(registers=64)], 1),
        ([candidate(spills=16), candidate()], 0),
        # All spill too much: those that spill least, in order.
        ([candidate(spills=90), candidate(spills=40), candidate(spills=40, registers=16)], 1),
        # What spills too much sets no measure for the rest.
        ([candidate(registers=16, spills=50), candidate(registers=255)], 1),
    ],
)
def test_keeps_the_first_that_neither_spills_nor_starves(
    candidates: list[Candidate], kept: int
) -> None:
    assert choose(candidates, A100) == kept


def test_profiles_are_named_by_their_capability() -> None:
    assert list(PROFILES) == ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100"]
    for slug, profile in PROFILES.items():
        assert slug == profile.slug == f"sm_{profile.major}{profile.minor}"
        assert profile.shared_memory_per_block_optin < profile.shared_memory_per_multiprocessor
