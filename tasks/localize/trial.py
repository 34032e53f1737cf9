"""Trial: compile a program, or a part of one, and run it, in a process that may crash.

Localization makes up to ten of these, one after another, in a step process of its own: one that
the compiler or the compiled code takes down is one trial's answer, and the process that asked goes
on with the next. It isn't a new process for each, because importing Inductor takes longer than most
of these compilations.
"""

from __future__ import annotations

import shutil

import torch

from handoff.artifacts.messages.localization import TrialJob, TrialResult
from handoff.artifacts.messages.steps import CompileJob
from handoff.tasks.compile import step as compiling
from handoff.tasks.localize.subsystems import left_out
from handoff.tasks.verify.loading import PACKAGE, SHARED_LIBRARY, open_package, open_shared_library


def run(job: TrialJob) -> TrialResult:
    """Compile as a release does, but without what is left out, and write the outputs.

    Raises `BlessingRefused` for what can't be compiled; what the package raises reaches the caller
    as `StepCrashed`.
    """
    plain = CompileJob(job.program, job.target, job.folder, job.options, fresh=True)
    with left_out(job.left_out) as sites:
        compiled = compiling.run(plain)
    # ATen's kernels in the place of lowerings may be called by a table that only the `.pt2` has.
    if job.left_out:
        package = open_package(job.folder / PACKAGE)
    else:
        package = open_shared_library(job.folder / SHARED_LIBRARY)
    given = torch.load(job.inputs, weights_only=True)
    outputs = [package(tuple(tensor.clone() for tensor in inputs)) for inputs in given]
    torch.save(outputs, job.outputs)
    shutil.rmtree(job.folder)
    return TrialResult(compiled.compile_s, tuple(sites))
