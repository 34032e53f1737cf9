"""A package for another processor as a function: the C++ runner calls it, under emulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from handoff.tasks.compile.arm.emulation import emulated_target, emulation_command
from handoff.tasks.probe.build import build_arm_runner
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.probe.remote import RemotePackage, remote_package
from handoff.tasks.probe.session import write_trial_release


@contextmanager
def emulated_package(
    job: ProbeJob, file: str, release: Path | None = None
) -> Iterator[RemotePackage]:
    """Open the package's `file` in an emulated process until the body ends.

    It lies in a release on trial, which is made in the job's workspace where none is given. Raises
    `EnvironmentLacking` where there is no emulator, or the runner can't be built.
    """
    target = emulated_target(job.slug)
    assert target is not None
    program, _ = build_arm_runner(job.source, job.programs)
    if release is None:
        release = job.workspace / "release"
        write_trial_release(job, release)
    command = emulation_command(target, program, [
        "answer", str(release), "--target", job.slug, "--file", file, "--unsigned", "--unchecked",
        "--intra-op", str(torch.get_num_threads()),
    ])  # fmt: skip
    where, answer_s = "under emulation", job.limits.answer_s
    with remote_package(command, job.workspace, where, answer_s) as package:
        yield package
