"""Packages in other versions of torch than the one that built them, where a recipe asks for it."""

from __future__ import annotations

from dataclasses import replace

from handoff.artifacts.errors import BlessingRefused, StepCrashed
from handoff.artifacts.release.manifest import TargetRecord
from handoff.flows.steps import make_torch, verify
from handoff.flows.target.variants import TargetContext
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.registry import target_record
from handoff.tasks.release.jobs import label_with_torch, supports_other_torches
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import VerifyResult
from handoff.tasks.verify.torch_versions.messages import MakeTorchJob, TorchEnvironment


def make_other_torches(processes: Processes) -> tuple[TorchEnvironment, ...]:
    """Make an environment for each version that the recipe names, where it is of any use.

    Raises `EnvironmentLacking` where one can't be had: before anything is compiled.
    """
    jobs = processes.jobs
    versions = dict.fromkeys(jobs.recipe.torch.also)
    if not any(supports_other_torches(target.slug) for target in processes.targets):
        return ()
    return tuple(
        make_torch(processes.torch_installer(), MakeTorchJob(version, jobs.torches), version)
        for version in versions
    )


def verify_with_other_torches(
    context: TargetContext, compiled: CompileResult, record: TargetRecord
) -> TargetRecord:
    """Compare an accepted package in each other version; return the record with what came of it.

    What isn't right there, or ends the process, is recorded for that version and refuses nothing.
    """
    if not record.accepted or not supports_other_torches(record.slug):
        return record
    checks = []
    for other in context.torches:
        result: VerifyResult | BlessingRefused | StepCrashed
        try:
            result = _compare(context, compiled, other)
        except (BlessingRefused, StepCrashed) as error:
            result = error
        checks.append(target_record.torch_check(other.version, result))
    return target_record.with_torches(record, tuple(checks))


def _compare(
    context: TargetContext, compiled: CompileResult, other: TorchEnvironment
) -> VerifyResult:
    processes, slug = context.processes, context.target.slug
    folder, library = processes.jobs.package(context.target), compiled.library.digest
    job = replace(
        processes.jobs.verify(slug, folder, library, context.optimized, context.reference),
        assumed=compiled.assumed, atomic_sums=compiled.atomic_sums, torch=other,
    )  # fmt: skip
    return verify(processes.runner(context.target), job, label_with_torch(slug, other.version))
