"""What a package asks of the machine it runs on, and which of several packages is best here."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from handoff.artifacts.machine.elf import host_glibc, parse_version
from handoff.artifacts.machine.gpu import driver_for, host_cuda, host_gpu_capabilities
from handoff.artifacts.recipe.gpu_generations import format_capabilities, matching_member
from handoff.artifacts.recipe.target import host_cpu_flags
from handoff.artifacts.record import added_field


@dataclass(frozen=True)
class Fit:
    """What a package asks of the machine it runs on.

    An AOTInductor package is for the torch that it was built with (its shim calls may move between
    versions), and for those of `also`, with which it was seen to be right; no other is asked to
    load it. It ends with SIGILL on a processor that lacks an instruction. Machine code
    for a GPU runs on those of its capability (90 for 9.0; 0: none is needed) and of a later minor
    one (CUDA C++ Programming Guide, "Binary Compatibility"); `cuda` is the CUDA that it was built
    with (`13.0`), whose major version the driver has to be for at least (CUDA Compatibility, "Minor
    Version Compatibility"). `glibc` is the newest of which the library uses a symbol (`2.34`).
    Either is empty where it wasn't written down or isn't needed. A package for several generations
    of GPUs is for `gpu_also`, too, and has machine code for `gpu_unverified`, which no GPU has run:
    it isn't for those.
    """

    cpu_flags: tuple[str, ...]
    torch: str
    machine: str = "x86_64"
    gpu_capability: int = added_field(0)
    glibc: str = added_field("")
    cuda: str = added_field("")
    also: tuple[str, ...] = added_field(())
    gpu_also: tuple[int, ...] = added_field(())
    gpu_unverified: tuple[int, ...] = added_field(())

    def __post_init__(self) -> None:
        """Raise `ValueError` for a version that can't be compared."""
        for version in filter(None, (self.glibc, self.cuda)):
            parse_version(version)

    @property
    def gpu_capabilities(self) -> tuple[int, ...]:
        """The compute capabilities that the package is for; none of a processor's."""
        return (self.gpu_capability, *self.gpu_also) if self.gpu_capability else ()

    @property
    def gpu_members(self) -> tuple[int, ...]:
        """All compute capabilities that it has machine code for, in ascending order."""
        return tuple(sorted((*self.gpu_capabilities, *self.gpu_unverified)))

    def restrict_to_host_gpu(self) -> Fit:
        """Return what the package asks of a machine once its numbers were compared on this one.

        That shows something about the machine code that the first GPU here runs: a package for
        several generations is for that one's then, and the others' are unverified. Raises
        `ValueError` for such a package where no GPU runs it.
        """
        if not self.gpu_also:
            return self
        here = host_gpu_capabilities()[:1]
        ran = matching_member(self.gpu_members, here[0]) if here else None
        if ran is None:
            raise ValueError(
                f"expected a GPU of compute capability {format_capabilities(self.gpu_members)} "
                f"that ran the package, got {format_capabilities(here) if here else 'none'}"
            )
        others = tuple(member for member in self.gpu_members if member != ran)
        return replace(self, gpu_capability=ran, gpu_also=(), gpu_unverified=others)

    def misfit(self, torch_version: str | None, *, unverified: bool = False) -> str | None:
        """Return why this machine can't run the package, or None where it can.

        `torch_version` is the torch that would load it, as `torch.__version__` gives it; None
        leaves that out (a folder checked where no torch is installed). With `unverified` the
        machine code may be some that no GPU has run, since that comes now.
        """
        if platform.machine() != self.machine:
            return f"it needs a {self.machine} processor, and this is {platform.machine()}"
        lacking = sorted(set(self.cpu_flags) - host_cpu_flags())
        if lacking:
            return f"it needs a processor with {', '.join(lacking)}, which this one lacks"
        if misfit := self._misfit_of_gpu(unverified=unverified):
            return misfit
        if misfit := self._misfit_of_libraries():
            return misfit
        if torch_version is not None and base_version(torch_version) not in self.torches:
            return f"it needs torch {' or '.join(self.torches)}, and this is torch {torch_version}"
        return None

    @property
    def torches(self) -> tuple[str, ...]:
        """The versions of torch that may load it: the one that built it first."""
        return (base_version(self.torch), *self.also)

    def _misfit_of_gpu(self, *, unverified: bool) -> str | None:
        """Return why no GPU here is one that the package is for, or None."""
        if not self.gpu_capability:
            return None
        here = host_gpu_capabilities()
        runnable = {
            member for one in here if (member := matching_member(self.gpu_members, one)) is not None
        }
        # Of several here, any may be the one that it is loaded on.
        if runnable and runnable <= {
            *self.gpu_capabilities,
            *(self.gpu_unverified if unverified else ()),
        }:
            return None
        needed = " or ".join(
            f"{one / 10:.1f} (or a later {one // 10}.x)" for one in self.gpu_capabilities
        )
        present = ", ".join(f"{one / 10:.1f}" for one in here) or "none"
        untried = ", whose machine code in it no GPU has run" if runnable else ""
        return f"it needs an NVIDIA GPU of compute capability {needed}; here: {present}{untried}"

    @property
    def nearness(self) -> tuple[int, int]:
        """How near it is to the GPUs here; of packages for GPUs that fit, the largest is best.

        Machine code for a later minor version is nearer, and a package for fewer GPUs.
        """
        members = self.gpu_members
        served = (matching_member(members, one) or 0 for one in host_gpu_capabilities())
        return max(served, default=0), -len(members)

    def _misfit_of_libraries(self) -> str | None:
        """Return what the C library or the driver here is too old for, or None."""
        glibc = host_glibc()
        if self.glibc and parse_version(glibc or "0") < parse_version(self.glibc):
            return (
                f"it needs glibc {self.glibc} or newer, and this is {glibc or 'another C library'}"
            )
        if self.cuda and host_cuda()[0] < (major := parse_version(self.cuda)[0]):
            driver = "{}.{}".format(*host_cuda()) if any(host_cuda()) else "none"
            return (
                f"it needs {driver_for(major)} (it was built with CUDA {self.cuda}); "
                f"the driver here is for CUDA {driver}"
            )
        return None


def best_of(fits: Sequence[Fit]) -> int:
    """Return which of the fits, of packages that all run here, is the best one's.

    It is the one that asks most of the processor, and of several for GPUs that ask the same, the
    one that is nearest to the GPU here; else the first.
    """
    best = max(range(len(fits)), key=lambda place: len(fits[place].cpu_flags))
    if not fits[best].gpu_capability:
        return best
    alike = [
        place for place, fit in enumerate(fits)
        if fit.gpu_capability and len(fit.cpu_flags) == len(fits[best].cpu_flags)
    ]  # fmt: skip
    return max(alike, key=lambda place: fits[place].nearness)


def base_version(version: str) -> str:
    """Return a version without its local part: `2.15.0` for `2.15.0+cpu`."""
    return version.partition("+")[0]


@cache
def installed_torch() -> str | None:
    """Return the installed torch's version from its metadata, without importing it.

    It is asked once: Python keeps what it found in each folder for as many times as that changes.
    """
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
