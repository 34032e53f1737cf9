"""Compile the Triton kernels that Inductor wrote, and keep one configuration of each.

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
Inductor's order knows about coalescing, which the binary doesn't show.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.machine.gpu import KIB, GpuProfile
from handoff.tasks.compile.cross.assembling import Assembler, FurtherResources
from handoff.tasks.compile.messages import KernelSource
from handoff.tasks.compile.reading.python_source import read_python

_DEFINITION = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


def kernel_digest(source: str, meta: Mapping[str, object]) -> Digest:
    """Return the digest of a kernel's function, its parameters' types, and its constants.

    `source` holds the function, with what stands before it; `meta` is what Inductor says of it to
    Triton (`signature`, `constants`). Comments and layout count for nothing. Raises `ValueError`
    where there is no function.
    """
    text = textwrap.dedent(source)
    definition = _DEFINITION.search(text)
    if definition is None:
        raise ValueError("expected a kernel's function, got none")
    code = ast.unparse(ast.parse(text[definition.start() :]))
    metadata = {
        part: {str(name): str(value) for name, value in _table(meta, part).items()}
        for part in ("signature", "constants")
    }
    return digest_bytes(f"{code}\n{json.dumps(metadata, sort_keys=True)}\n".encode())


def _table(meta: Mapping[str, object], part: str) -> Mapping[object, object]:
    table = meta.get(part)
    return table if isinstance(table, Mapping) else {}


# How many spilled registers Inductor puts up with when it tunes (`spill_threshold`).
SPILL_LIMIT = 16

# Registers are given to a warp in steps of this many; a block takes this much shared memory more
# than it asks for, on capability 8.0 and newer.
_REGISTER_STEP = 256
_RESERVED_SHARED = 1 * KIB


@dataclass(frozen=True)
class KernelChoice:
    """Which configuration of a kernel was kept, of how many, and what it takes of the GPU.

    `source` is what it was compiled from, and `further` what it takes of further GPUs.
    """

    name: str
    configuration: str
    candidates: int
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    resident_warps: int
    source: KernelSource
    further: tuple[FurtherResources, ...] = ()


def keep_one_configuration(
    code: Any,  # noqa: ANN401 - Inductor's PythonWrapperCodegen
    profile: GpuProfile,
    assembler: Assembler,
    chosen: list[KernelChoice],
) -> None:
    """Stand in for Inductor's autotuning of a graph: compile all, time none, save one of each.

    The block of code that Inductor writes defines the kernels and then calls each with tensors on
    the device. Only the definitions are executed. What is kept is assembled for further GPUs, too,
    and added to `chosen`.
    """
    heuristics = import_module("torch._inductor.runtime.triton_heuristics")
    code.kernel_autotune_defs.splice("\nasync_compile.wait(globals())\ndel async_compile\n")
    scope: dict[str, Any] = {}
    source = code.kernel_autotune_defs.getvalue()
    read_python(source)
    exec(source, scope)  # noqa: S102 - Inductor's own code, and read
    tuners = [value for value in scope.values() if isinstance(value, heuristics.CachingAutotuner)]
    for tuner in tuners:
        if not tuner.launchers:
            tuner.precompile()
        choice, launcher = _choose_configuration(tuner, profile)
        further = assembler.assemble_further(choice.name, launcher.bin, choice.warps)
        # The stream is recorded with a kernel and never read again: the wrapper has its own.
        tuner.save_gpu_kernel("stream", launcher)
        chosen.append(replace(choice, further=further))


def _choose_configuration(tuner: Any, profile: GpuProfile) -> tuple[KernelChoice, Any]:  # noqa: ANN401
    # What the machine code calls it; Inductor numbers the kernels that an operator brings.
    name = tuner.fn.__name__
    if not tuner.launchers:
        raise BlessingRefused(
            f"no configuration of {name} fits {profile.slug}",
            expected="one that compiles within the GPU's shared memory and threads", got="none",
            remedy="Leave this target out, or compile on a machine with the GPU",
        )  # fmt: skip
    candidates = [_candidate(launcher) for launcher in tuner.launchers]
    index = choose(candidates, profile)
    chosen, launcher = candidates[index], tuner.launchers[index]
    blocks = {str(key): int(value) for key, value in launcher.config.kwargs.items()}
    return KernelChoice(
        name=name,
        configuration=", ".join(f"{key}={value}" for key, value in launcher.config.kwargs.items()),
        candidates=len(candidates),
        registers=chosen.registers,
        spills=chosen.spills,
        shared_bytes=chosen.shared_bytes,
        warps=chosen.warps,
        resident_warps=resident_warps(chosen, profile),
        source=KernelSource(name, kernel_digest(tuner.fn.src, tuner.triton_meta), blocks),
    ), launcher


def _candidate(launcher: Any) -> Candidate:  # noqa: ANN401 - Inductor's launcher, a function
    return Candidate(
        registers=launcher.n_regs,
        spills=launcher.n_spills,
        shared_bytes=launcher.shared,
        warps=launcher.config.num_warps,
    )


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
    eligible = [index for index, candidate in enumerate(candidates) if candidate.spills <= limit]
    warps = {index: resident_warps(candidates[index], profile) for index in eligible}
    best = max(warps.values())
    return next(index for index in eligible if 2 * warps[index] >= best)
