"""Which of Inductor's configurations of a kernel is kept, where none can be timed.

Inductor proposes a few configurations (block sizes, warps) for each kernel, in an order of its
own: the first is what it would take without tuning. Here every one is compiled, and what the
assembler made of it is read off the binary. The rule is then deterministic:

1. A configuration that spills more registers than Inductor's own limit is left out; if all do,
   those that spill least stay.
2. Of the rest, the first in Inductor's order is kept whose resident warps are at least half of
   what the best of the rest has.

Resident warps are how many warps a multiprocessor can hold at once, by the kernel's registers,
shared memory and threads (CUDA C++ Best Practices Guide, "Occupancy"). Half is enough: beyond it,
more warps rarely hide more latency (Volkov, Better Performance at Lower Occupancy, 2010), while
Inductor's order knows about coalescing, which the binary doesn't tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handoff.artifacts.machine.gpu import KIB, GpuProfile

# How many spilled registers Inductor puts up with when it tunes (`spill_threshold`).
SPILL_LIMIT = 16

# Registers are given to a warp in steps of this many; a block takes this much shared memory more
# than it asks for, on capability 8.0 and newer.
_REGISTER_STEP = 256
_RESERVED_SHARED = 1 * KIB


@dataclass(frozen=True)
class Candidate:
    """A compiled configuration: registers of a thread, spilled ones, bytes shared, warps."""

    registers: int
    spills: int
    shared_bytes: int
    warps: int


def resident_warps(candidate: Candidate, profile: GpuProfile) -> int:
    """Return how many warps of this kernel a multiprocessor of this GPU can hold at once."""
    per_warp = -(-candidate.registers * profile.warp_size // _REGISTER_STEP) * _REGISTER_STEP
    shared = candidate.shared_bytes + _RESERVED_SHARED
    threads = candidate.warps * profile.warp_size
    blocks = min(
        profile.registers_per_multiprocessor // max(1, per_warp * candidate.warps),
        profile.shared_memory_per_multiprocessor // shared,
        profile.max_threads_per_multiprocessor // threads,
        profile.max_blocks_per_multiprocessor,
    )
    return blocks * candidate.warps


def choose(candidates: Sequence[Candidate], profile: GpuProfile) -> int:
    """Return the index of the configuration to keep, by the rule above; there has to be one."""
    fewest = min(candidate.spills for candidate in candidates)
    limit = max(SPILL_LIMIT, fewest)
    left = [index for index, candidate in enumerate(candidates) if candidate.spills <= limit]
    warps = {index: resident_warps(candidates[index], profile) for index in left}
    best = max(warps.values())
    return next(index for index in left if 2 * warps[index] >= best)
