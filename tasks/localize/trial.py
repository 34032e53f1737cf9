"""Trial: compile a program, or a part of one, and run it, in a process that may crash.

Localization makes up to ten of these, one after another, in a step process of its own: one that
the compiler or the compiled code takes down is one trial's answer, and the process that asked
continues with the next. It isn't a new process for each, because importing Inductor takes longer
than most of these compilations.

`torch._inductor.compiler_bisector.CompilerBisector` asks at each decomposition, graph pass and
lowering whether it is to be left out, and goes by environment variables that it reads once, or
by files. Here its one question, `disable_subsystem`, is answered by a function instead (torch 2.11
to 2.15), which also sees what is asked about.
"""

from __future__ import annotations

import re
import shutil
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch._inductor.compiler_bisector import CompilerBisector

from handoff.tasks.compile import step as compiling
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.localize.messages import LeaveOut, Subsystem, SubsystemUse, TrialJob, TrialResult
from handoff.tasks.verify.loading import PACKAGE, SHARED_LIBRARY, open_package, open_shared_library

_OPERATOR = re.compile(r"<OpOverload\(op='(.+)', overload='(.+)'\)>")
_SUBSYSTEMS: tuple[Subsystem, ...] = typing.get_args(Subsystem)


def run(job: TrialJob) -> TrialResult:
    """Compile as a release does, but without what is left out, and write the outputs.

    Raises `BlessingRefused` for what can't be compiled; what the package raises reaches the caller
    as `StepCrashed`.
    """
    compile_job = CompileJob(
        job.program, job.target, job.folder, job.options, fresh=True, shared=job.shared
    )
    with leave_out(job.left_out) as uses:
        compiled = compiling.run(compile_job)
    # ATen's kernels in the place of lowerings may be called by a table that only the `.pt2` has.
    if job.left_out:
        package = open_package(job.folder / PACKAGE)
    else:
        package = open_shared_library(job.folder / SHARED_LIBRARY)
    all_inputs = torch.load(job.inputs, weights_only=True)
    outputs = [package(tuple(tensor.clone() for tensor in inputs)) for inputs in all_inputs]
    torch.save(outputs, job.outputs)
    shutil.rmtree(job.folder)
    return TrialResult(compiled.compile_s, tuple(uses))


@contextmanager
def leave_out(parts: Sequence[LeaveOut]) -> Iterator[list[SubsystemUse]]:
    """Compile without `parts` in the body; the list is filled with each use of a subsystem."""
    uses: list[SubsystemUse] = []
    counts: Counter[str] = Counter()

    def disable_subsystem(
        _backend: str, subsystem: str, debug_info: Callable[[], str] | None = None
    ) -> bool:
        if subsystem not in _SUBSYSTEMS:
            return False
        index = counts[subsystem]
        counts[subsystem] += 1
        # An operator as it is written in a graph, and anything else as it is.
        what = _OPERATOR.sub(r"\1.\2", debug_info() if debug_info else "")
        uses.append(SubsystemUse(subsystem, index, what))
        return any(p.subsystem == subsystem and p.first <= index < p.last for p in parts)

    with patch_attribute(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem)):
        yield uses
