"""Lets Inductor compile for ARM64 on x86-64: with a cross compiler, and ARM64's torch.

Inductor (torch 2.15) asks the machine that it runs on for the vector instructions, the compiler's
level and torch's own folder. In the body it gets those of the target. Everything else, what is
read of the source before it is compiled included, goes the way of any other package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.cpu_vec_isa import VecISA, VecNEON
from torch.utils import cpp_extension

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.recipe.target import ArmTarget
from handoff.tasks.compile.arm.sysroot import Sysroot, find_sysroot, is_arm_host
from handoff.tasks.compile.machine.host import has_march_option
from handoff.tasks.compile.patching import patch_attribute

# What chooses by what it times, or packs weights in the layout of the machine that it runs on.
_NEEDS_HOST_CPU = frozenset({
    "freezing", "max_autotune", "max_autotune_pointwise", "max_autotune_gemm",
})  # fmt: skip


class Neon(VecNEON):
    """NEON, of which nothing is compiled and run to know whether it is there."""

    __hash__ = VecISA.__hash__  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return True


def arm_options(target: ArmTarget, options: Mapping[str, object]) -> dict[str, object]:
    """Return Inductor's options for `target` beside those of the recipe.

    Raises `UsageProblem` for one that needs the machine itself, `EnvironmentLacking` for a torch
    that lets no level be chosen.
    """
    refused = sorted(name for name in _NEEDS_HOST_CPU if options.get(name))
    if refused and not is_arm_host():
        raise UsageProblem(
            f"{', '.join(refused)} can't be had for {target.slug} on another machine",
            expected="options that neither time kernels nor pack weights for the processor here",
            got=", ".join(refused),
            remedy="Leave it out of the recipe, or the target, or build on an ARM64 machine",
        )
    if not has_march_option():
        raise EnvironmentLacking(
            f"packages for {target.slug} can't be built", expected="torch 2.13 or newer",
            got="one that compiles for the building machine alone", remedy="Install a newer torch",
        )  # fmt: skip
    target_options: dict[str, object] = {
        "cpp.march": target.march,
        "cpp.simdlen": Neon().bit_width(),
    }
    if not is_arm_host():
        target_options |= {
            "cpp.cxx": (find_sysroot().compiler,),
            # They are made for the building machine's torch.
            "aot_inductor.precompile_headers": False,
        }
    return target_options


@contextmanager
def use_arm_compiler() -> Iterator[None]:
    """Let Inductor write NEON, and compile it with what there is for ARM64, in the body.

    Raises `EnvironmentLacking` where this machine lacks it.
    """
    only = [Neon()]
    with patch_attribute(cpu_vec_isa, "valid_vec_isa_list", lambda: only):
        if is_arm_host():
            yield
            return
        with _use_torch_of(find_sysroot()):
            yield


@contextmanager
def _use_torch_of(sysroot: Sysroot) -> Iterator[None]:
    include = sysroot.include
    folders = [str(include), str(include / "torch" / "csrc" / "api" / "include")]
    original = codecache.get_device_information

    def device_information(device_type: str) -> dict[str, str]:
        return {**original(device_type), "AOTI_MACHINE": "aarch64"}

    with (
        patch_attribute(cpp_extension, "include_paths", lambda *_, **__: folders),
        patch_attribute(cpp_extension, "TORCH_LIB_PATH", str(sysroot.libraries)),
        patch_attribute(codecache, "get_device_information", device_information),
    ):
        yield
