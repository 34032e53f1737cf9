"""GPUs of one or several generations: which machine code a GPU runs, and how a target names them.

A package may hold each kernel's machine code for several compute capabilities. All of it is
assembled from the PTX that Triton writes for the lowest one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from handoff.artifacts.machine.gpu import PROFILES, GpuProfile, intersect_limits

# Each adds its machine code to every kernel.
MOST = 4
# From here on Triton's PTX is for the very GPU (`sm_90a`), and no newer one can take it.
FIRST_SPECIFIC = 90

_NUMBER = re.compile(r"[0-9]{1,4}")


def runs_on(built_for: int, capability: int) -> bool:
    """Return whether a GPU of `capability` runs machine code for another of the same major one."""
    return capability // 10 == built_for // 10 and capability >= built_for


def matching_member(members: Iterable[int], capability: int) -> int | None:
    """Return for which of `members` the code is that a GPU of `capability` runs; None for none.

    The driver takes the nearest one (CUDA C++ Programming Guide, "Binary Compatibility").
    """
    return max((member for member in members if runs_on(member, capability)), default=None)


def format_capabilities(members: Iterable[int]) -> str:
    """Return compute capabilities as people write them: `8.0 and 9.0`."""
    *others, last = (f"{member / 10:.1f}" for member in members)
    return f"{', '.join(others)} and {last}" if others else last


def cuda_slug(members: Sequence[int]) -> str:
    """Return the name of the target for GPUs of these capabilities: `cuda-sm80+sm90`."""
    return "cuda-" + "+".join(f"sm{member}" for member in members)


def common_profile(members: Sequence[int]) -> GpuProfile:
    """Return the figures that a compiler goes by for the GPUs of these capabilities.

    They are those of the lowest, within what a block may use on every one.
    """
    return intersect_limits(tuple(PROFILES[f"sm_{member}"] for member in members))


def parse_generations(slug: str) -> tuple[int, ...]:
    """Return the capabilities of a target for several GPUs; none where `slug` isn't meant as one.

    Raises `ValueError` for what is meant as one and is not, with what to write.
    """
    numbers = [int(number) for number in _NUMBER.findall(slug)]
    if not slug.startswith("cuda") or len(numbers) < 2:
        return ()
    known = [profile.capability for profile in PROFILES.values()]
    members = tuple(sorted(set(numbers)))
    expected, got = "", repr(slug[:60])
    if not set(members) <= set(known):
        expected = f"GPUs among {', '.join(f'sm{one}' for one in known)}, joined as cuda-sm80+sm90"
    elif len(members) > MOST:
        expected = f"at most {MOST} GPUs in one package, and further ones in another target"
    elif len(members) > 1 and members[0] >= FIRST_SPECIFIC:
        apart = " and ".join(cuda_slug([member]) for member in members)
        expected = (
            f"a first GPU before sm{FIRST_SPECIFIC}, since Triton's PTX is for no other GPU from "
            f"there on (write {apart}, a target each)"
        )
        got += f", whose first is sm{members[0]}"
    elif slug != cuda_slug(members):
        expected = f"capabilities in ascending order, each once: {cuda_slug(members)}"
    if expected:
        raise ValueError(f"expected {expected}, got {got}")
    return members
