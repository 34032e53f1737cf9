"""Makes Inductor vectorise for a target's level, and for nothing beyond it.

Left alone, Inductor takes the best that the building machine has below `ATEN_CPU_CAPABILITY`: with
`avx512` that may be AVX512-VNNI, bfloat16 dot products or AMX, whichever the machine happens to
have. A package's name would then say less than the package needs.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._inductor import config, cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX2, VecAVX512, VecISA

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags
from handoff.tasks.compile.caching.shared_tools import level_marker
from handoff.tasks.compile.patching import patch_attribute, patch_environment


class _PlainAVX512(VecAVX512):
    """AVX-512 without the bfloat16 that Inductor adds where the building machine has it."""

    __hash__ = VecISA.__hash__  # type: ignore[assignment]

    @functools.cached_property
    def _usable(self) -> bool:
        return VecISA.__bool__(self)

    def __bool__(self) -> bool:  # type: ignore[override]
        return self._usable


class _Bfloat16AVX512(VecAVX512):
    """AVX-512 with bfloat16; a class of its own, see `_describe`."""

    __hash__ = VecISA.__hash__  # type: ignore[assignment]


class _Amx(VecAMX):
    """AMX, and the bfloat16 of AVX-512 with it; likewise."""

    __hash__ = VecISA.__hash__  # type: ignore[assignment]


@functools.cache
def _describe(isa: Isa) -> VecISA:
    """Return the one description of a level that is used in this process.

    Torch (2.15) remembers for all descriptions of a class that one was usable, and notes bfloat16
    on that one alone: any other is without.
    """
    described: VecISA = {
        "avx2": VecAVX2, "avx512": _PlainAVX512, "avx512-bf16": _Bfloat16AVX512, "amx": _Amx,
        # What they have beyond that is oneDNN's to use.
        "avx2-vnni": VecAVX2, "avx512-vnni": _PlainAVX512,
    }[isa]()  # fmt: skip
    return described


@functools.cache
def vector_isa(isa: Isa, shared: Path | None = None) -> VecISA:
    """Return Inductor's description of the level, once it was seen to compile and load here.

    It was seen where the folder `shared` says so (`tasks.compile.caching.shared_tools`); the test
    program takes seconds to compile, and is kept in the platform's temporary folder. Raises
    `EnvironmentLacking` where this machine or its compiler lacks the level.
    """
    chosen = _describe(isa)
    is_verified = shared is not None and level_marker(shared, isa).exists()
    with (
        patch_environment({"TORCHINDUCTOR_CACHE_DIR": str(_test_program_folder())}),
        config.patch({"cpp.vec_isa_ok": True} if is_verified else {}),
    ):
        usable = bool(chosen)
    if isa == "avx512-bf16":
        usable = usable and "avx512bf16" in chosen.build_arch_flags()
    if not usable:
        raise EnvironmentLacking(
            f"packages for cpu-{isa} can't be built here",
            expected="a processor and a C++ compiler with that level",
            got="a test program that could not be compiled or loaded",
            remedy="Build on such a machine, or leave that target out of the recipe",
        )
    return chosen


def _test_program_folder() -> Path:
    """Return where this processor's test programs are; a build's own cache is gone with it."""
    flags = " ".join(sorted(host_cpu_flags()))
    return Path(tempfile.gettempdir(), f"torchinductor_isa_{digest_bytes(flags.encode()).short}")


@contextmanager
def restrict_vector_isa(target: CpuTarget, shared: Path | None = None) -> Iterator[None]:
    """Let Inductor know of no other level than the target's in the body; `vector_isa` says how."""
    only = [vector_isa(target.isa, shared)]
    with (
        patch_attribute(cpu_vec_isa, "valid_vec_isa_list", lambda: only),
        config.patch({"cpp.vec_isa_ok": True}),
    ):
        yield
