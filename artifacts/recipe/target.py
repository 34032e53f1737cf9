"""The machines that a package is built for."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from handoff.artifacts.machine.gpu import (
    PROFILES,
    GpuProfile,
    host_gpu_capabilities,
)
from handoff.artifacts.recipe.gpu_generations import (
    common_profile,
    cuda_slug,
    matching_member,
    parse_generations,
)
from handoff.artifacts.record import added_field

Isa = Literal["avx2", "avx512", "avx2-vnni", "avx512-vnni", "avx512-bf16", "amx"]
ArmIsa = Literal["v8.2"]

# The x86-64 psABI's micro-architecture levels, by the flags of /proc/cpuinfo (the ABI's table 3.1).
_V3_FLAGS = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "sse4_2"})
_V4_FLAGS = _V3_FLAGS | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# What came after the levels, and pays where a recipe allows low precision. Without VNNI sums of
# int8 products may saturate on their way, so that what was verified isn't computed there.
_V3_VNNI_FLAGS = _V3_FLAGS | {"avx_vnni"}
_V4_VNNI_FLAGS = _V4_FLAGS | {"avx512_vnni"}
_BF16_FLAGS = _V4_FLAGS | {"avx512_bf16"}
_AMX_FLAGS = _BF16_FLAGS | {"avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"}
# From the least on.
_ONEDNN_LEVELS: dict[Isa, str] = {
    "avx2": "AVX2", "avx2-vnni": "AVX2_VNNI", "avx512": "AVX512_CORE",
    "avx512-vnni": "AVX512_CORE_VNNI", "avx512-bf16": "AVX512_CORE_BF16", "amx": "AVX512_CORE_AMX",
}  # fmt: skip
# What ARMv8.2-A has to have of what g++ emits for it, by Linux's names (its elf_hwcaps.rst).
_ARM_V82_FLAGS = frozenset({"fp", "asimd", "crc32", "atomics", "asimdrdm"})


@dataclass(frozen=True)
class CpuTarget:
    """An x86-64 processor of an instruction set level.

    `avx2` is x86-64-v3, `avx512` x86-64-v4; with `-vnni` they have int8 dot products (Alder Lake;
    Cascade Lake, Zen 4). `avx512-bf16` has bfloat16's (Cooper Lake, Zen 4), `amx` tiles for both
    (Sapphire Rapids).
    """

    isa: Isa
    kind: Literal["cpu"] = "cpu"

    @property
    def slug(self) -> str:
        """The target's name in recipes, folders and the registry: `cpu-avx2`."""
        return f"cpu-{self.isa}"

    @property
    def host(self) -> CpuTarget:
        """The processor that runs the package's C++: this one."""
        return self

    @property
    def march(self) -> str:
        """The level as g++ names it; Inductor adds what is beyond it."""
        return "x86-64-v3" if self.isa.startswith("avx2") else "x86-64-v4"

    @property
    def capability(self) -> str:
        """The level as ATen names it in `ATEN_CPU_CAPABILITY`."""
        return "avx2" if self.isa.startswith("avx2") else "avx512"

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The flags of /proc/cpuinfo that a processor of this level has."""
        return {
            "avx2": _V3_FLAGS, "avx512": _V4_FLAGS, "avx512-bf16": _BF16_FLAGS, "amx": _AMX_FLAGS,
            "avx2-vnni": _V3_VNNI_FLAGS, "avx512-vnni": _V4_VNNI_FLAGS,
        }[self.isa]  # fmt: skip

    @property
    def onednn_level(self) -> str:
        """The level as oneDNN names it in `ONEDNN_MAX_CPU_ISA`."""
        return _ONEDNN_LEVELS[self.isa]

    @property
    def computes_int8(self) -> bool:
        """Return whether its processors multiply int8 without saturating on the way."""
        return bool(self.cpu_flags & {"avx_vnni", "avx512_vnni"})


@dataclass(frozen=True)
class ArmTarget:
    """An ARM64 processor of an architecture level, for Linux.

    `v8.2` is ARMv8.2-A with NEON's 128 bits (Neoverse N1, Graviton 2, and all that came after).
    """

    isa: ArmIsa
    kind: Literal["arm64"] = "arm64"

    @property
    def slug(self) -> str:
        """The target's name in recipes, folders and the registry: `arm64-v8.2`."""
        return f"arm64-{self.isa}"

    @property
    def host(self) -> ArmTarget:
        """The processor that runs the package's C++: this one."""
        return self

    @property
    def is_emulated(self) -> bool:
        """Return whether this machine runs such packages by an emulator alone."""
        return platform.machine() != "aarch64"

    @property
    def march(self) -> str:
        """The level as g++ names it."""
        return "armv8.2-a"

    @property
    def capability(self) -> str:
        """The level as ATen names it in `ATEN_CPU_CAPABILITY`: what isn't SVE."""
        return "default"

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The features of /proc/cpuinfo that a processor of this level has."""
        return _ARM_V82_FLAGS


@dataclass(frozen=True)
class CudaTarget:
    """NVIDIA GPUs of one or several compute capabilities, beside an x86-64-v3 host.

    `sm` is the lowest, 90 for 9.0, and `further` are the others, in ascending order.
    """

    sm: int
    kind: Literal["cuda"] = "cuda"
    further: tuple[int, ...] = added_field(())

    @property
    def slug(self) -> str:
        """The target's name in recipes, folders and the registry: `cuda-sm90`."""
        return cuda_slug(self.members)

    @property
    def members(self) -> tuple[int, ...]:
        """The compute capabilities that there is machine code for, in ascending order."""
        return (self.sm, *self.further)

    @property
    def profile(self) -> GpuProfile:
        """The figures that a compiler goes by: of the lowest, within the limits of all."""
        return common_profile(self.members)

    @property
    def profiles(self) -> tuple[GpuProfile, ...]:
        """The figures of each capability's GPU, in ascending order."""
        return tuple(PROFILES[f"sm_{member}"] for member in self.members)

    @property
    def is_here(self) -> bool:
        """Return whether this machine has a GPU that runs such packages."""
        return any(
            matching_member(self.members, one) is not None for one in host_gpu_capabilities()
        )

    @property
    def host(self) -> CpuTarget:
        """The processor that runs the package's C++: the one beside the GPU."""
        return CpuTarget("avx2")

    @property
    def march(self) -> str:
        """The host's level as g++ names it."""
        return self.host.march

    @property
    def capability(self) -> str:
        """The host's level as ATen names it in `ATEN_CPU_CAPABILITY`."""
        return self.host.capability

    @property
    def onednn_level(self) -> str:
        """The host's level as oneDNN names it in `ONEDNN_MAX_CPU_ISA`."""
        return self.host.onednn_level

    @property
    def cpu_flags(self) -> frozenset[str]:
        """The flags of /proc/cpuinfo that the host has."""
        return self.host.cpu_flags


Target = CpuTarget | ArmTarget | CudaTarget

# The psABI's levels, which `cpu` stands for, and those beyond it.
_LEVELS = (CpuTarget("avx512"), CpuTarget("avx2"))
_ALL: tuple[Target, ...] = (
    *_LEVELS, CpuTarget("avx2-vnni"), CpuTarget("avx512-vnni"), CpuTarget("avx512-bf16"),
    CpuTarget("amx"),
    ArmTarget("v8.2"),
    *(CudaTarget(profile.capability) for profile in PROFILES.values()),
)  # fmt: skip
TARGETS: dict[str, Target] = {target.slug: target for target in _ALL}


def parse_target(slug: str) -> Target:
    """Return the target that `slug` names; `cpu` is the best level of this machine.

    Raises `ValueError` for another name, and when this machine has none of the levels.
    """
    return native_target() if slug == "cpu" else require_target(slug)


def require_target(slug: str) -> Target:
    """Return the target that `slug` names, whatever this machine is; raise `ValueError` for none.

    GPUs of several generations are named `cuda-sm80+sm90`.
    """
    if slug in TARGETS:
        return TARGETS[slug]
    if members := parse_generations(slug):
        return CudaTarget(members[0], further=members[1:])
    raise ValueError(
        f"expected a target among cpu, {', '.join(TARGETS)}, or GPUs of these joined as "
        f"cuda-sm80+sm90, got {slug[:60]!r}"
    )


def find_target(slug: str) -> Target | None:
    """Return the target that `slug` names, whatever this machine is; None for no target's name."""
    try:
        return require_target(slug)
    except ValueError:
        return None


def native_target() -> CpuTarget | ArmTarget:
    """Return the highest level that this machine's processor has; raise `ValueError` for none."""
    arm = ArmTarget("v8.2")
    if platform.machine() == "aarch64" and arm.cpu_flags <= host_cpu_flags():
        return arm
    return native_cpu_target()


def native_cpu_target() -> CpuTarget:
    """Return the highest level of x86-64 that this machine has; raise `ValueError` for none."""
    for target in _LEVELS:
        if target.cpu_flags <= host_cpu_flags():
            return target
    raise ValueError(
        "expected an x86-64 processor with AVX2 or better, or an ARM64 one of ARMv8.2, "
        f"got {platform.machine()} without it"
    )


def isa_limit_variables(target: Target) -> dict[str, str]:
    """Return the variables that hold torch, oneDNN and MKL to the level of `target`'s machines.

    There are none for this machine's own best level, and for another kind of processor.
    """
    if isinstance(target, ArmTarget) or target.onednn_level == _best_onednn_level():
        return {}
    return isa_level_variables(target)


def isa_level_variables(target: Target) -> dict[str, str]:
    """Return the variables that hold torch, oneDNN and MKL to the level on any such processor."""
    level = {"ATEN_CPU_CAPABILITY": target.capability}
    if isinstance(target, ArmTarget):
        return level
    return {
        **level,
        "ONEDNN_MAX_CPU_ISA": target.onednn_level,
        "MKL_ENABLE_INSTRUCTIONS": target.capability.upper(),
    }


def compile_variables(target: Target) -> dict[str, str]:
    """Return the variables that a process has which compiles for `target`, and what it compiles."""
    return {**isa_limit_variables(target), "ATEN_CPU_CAPABILITY": target.capability}


def _best_onednn_level() -> str:
    """Return the last of the levels that this machine has, as oneDNN names it; '' for none."""
    here = [
        target.onednn_level for target in map(CpuTarget, _ONEDNN_LEVELS)
        if target.cpu_flags <= host_cpu_flags()
    ]  # fmt: skip
    return here[-1] if here else ""


@cache
def host_cpu_flags() -> frozenset[str]:
    """Return this machine's processor flags as Linux names them; none where it doesn't say."""
    processor = _read_cpuinfo()
    return frozenset((processor.get("flags") or processor.get("Features", "")).split())


def host_cpu_model() -> str:
    """Return what Linux calls this machine's processor; nothing where it doesn't say."""
    return _read_cpuinfo().get("model name", "")


def describe_host_cpu() -> str:
    """Return this machine's processor by name and by all that it can do.

    A virtual machine's name is often that of a family: one of Cascade Lake and one of Sapphire
    Rapids are both an `Intel(R) Xeon(R) Processor`.
    """
    return " ".join((host_cpu_model(), *sorted(host_cpu_flags())))


@cache
def _read_cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
