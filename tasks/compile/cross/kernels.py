"""Compile the Triton kernels that Inductor wrote, and keep one configuration of each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.tasks.compile.cross.choice import Candidate, choose, resident_warps
from handoff.tasks.compile.reading.python_source import read_python


@dataclass(frozen=True)
class KernelChoice:
    """Which configuration of a kernel was kept, of how many, and what it takes of the GPU."""

    name: str
    configuration: str
    candidates: int
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    resident_warps: int


def keep_one_configuration(
    code: Any,  # noqa: ANN401 - Inductor's PythonWrapperCodegen
    profile: GpuProfile,
    chosen: list[KernelChoice],
) -> None:
    """Stand in for Inductor's autotuning of a graph: compile all, time none, save one of each.

    The block of code that Inductor writes defines the kernels and then calls each with tensors on
    the device. Only the definitions are executed. Adds what was kept to `chosen`.
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
        choice, launcher = _keep_one(tuner, profile)
        # The stream is recorded with a kernel and never read again: the wrapper has its own.
        tuner.save_gpu_kernel("stream", launcher)
        chosen.append(choice)


def _keep_one(tuner: Any, profile: GpuProfile) -> tuple[KernelChoice, Any]:  # noqa: ANN401
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
    kept, launcher = candidates[index], tuner.launchers[index]
    return KernelChoice(
        name=name,
        configuration=", ".join(f"{key}={value}" for key, value in launcher.config.kwargs.items()),
        candidates=len(candidates),
        registers=kept.registers,
        spills=kept.spills,
        shared_bytes=kept.shared_bytes,
        warps=kept.warps,
        resident_warps=resident_warps(kept, profile),
    ), launcher


def _candidate(launcher: Any) -> Candidate:  # noqa: ANN401 - Inductor's launcher, a function
    return Candidate(
        registers=launcher.n_regs,
        spills=launcher.n_spills,
        shared_bytes=launcher.shared,
        warps=launcher.config.num_warps,
    )
