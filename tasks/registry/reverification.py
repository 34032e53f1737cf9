"""Repeats the comparison that a release rests on, with the delivery that it was made from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from handoff.artifacts.errors import BlessingRefused, HandoffError, StepCrashed, UsageProblem
from handoff.artifacts.host import HostSettings, Stores
from handoff.artifacts.machine.gpu import host_gpu_capabilities
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.recipe.gpu_generations import format_capabilities, matching_member
from handoff.artifacts.recipe.recipe import OtherTorch
from handoff.artifacts.recipe.search import KNOBS, Search
from handoff.artifacts.recipe.target import parse_target
from handoff.artifacts.release.evidence import TorchCheck
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.package import check_release
from handoff.artifacts.release.signing import read_trust
from handoff.infra.engine.child import StepProcess
from handoff.infra.engine.workspaces import scratch_workspace
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.registry.messages import PullJob, RestoreJob
from handoff.tasks.registry.pull import restore
from handoff.tasks.registry.pull import run as pull
from handoff.tasks.registry.target_record import torch_check
from handoff.tasks.release.jobs import supports_other_torches
from handoff.tasks.release.processes import TORCHES, Processes
from handoff.tasks.verify.messages import ReferenceResult, VerifyJob, VerifyResult
from handoff.tasks.verify.torch_versions.messages import MakeTorchJob, TorchEnvironment


@dataclass(frozen=True)
class ReleasedTarget:
    """One target of a pulled release, and the delivery that it was made from."""

    folder: Path
    manifest: Manifest
    slug: str
    delivery: Path

    @property
    def record(self) -> TargetRecord:
        """The target's own."""
        (record,) = [target for target in self.manifest.targets if target.slug == self.slug]
        return record


def repeat_comparison(folder: Path, manifest: Manifest, slug: str, delivery: Path) -> str:
    """Compare the package of one target in `folder` with `delivery` again; return what came out.

    The input plan is made again and is the recorded one where its digest is. Raises `UsageProblem`
    for another delivery than the release was made from, and `BlessingRefused` where the package is
    not accepted here.
    """
    released = ReleasedTarget(folder.absolute(), manifest, slug, delivery.absolute())
    with (
        tempfile.TemporaryDirectory(prefix="handoff-") as scratch,
        _run_reference(released, Path(scratch) / "repeat", ()) as (processes, job, reference),
    ):
        verified = processes.runner(parse_target(slug)).run(job)
    return _describe_comparison(manifest, released.record, reference, verified)


def compare_with_torches(
    released: ReleasedTarget, workspace: Path, torches: tuple[TorchEnvironment, ...]
) -> tuple[TorchCheck, ...]:
    """Compare the package of one target in other versions of torch.

    `workspace` lies in the folder of the builds, beside the environments. Raises `UsageProblem` for
    another delivery than the release was made from, and for a target that can't be tried.
    """
    slug = released.slug
    if not supports_other_torches(slug):
        raise UsageProblem(
            f"{slug} can't be tried with another torch here",
            expected="a target for processors like this machine's", got=slug,
            remedy="Name another target with --target",
        )  # fmt: skip
    versions = tuple(other.version for other in torches)
    checks = []
    with _run_reference(released, workspace, versions) as (processes, job, _):
        for other in torches:
            outcome: VerifyResult | HandoffError
            try:
                outcome = processes.runner(parse_target(slug)).run(replace(job, torch=other))
            except (BlessingRefused, StepCrashed) as error:
                outcome = error
            checks.append(torch_check(other.version, outcome))
    return tuple(checks)


@contextmanager
def _run_reference(
    released: ReleasedTarget, workspace: Path, torches: tuple[str, ...]
) -> Iterator[tuple[Processes, VerifyJob, ReferenceResult]]:
    """Run the reference in `workspace`; give the job that compares the package with it."""
    manifest, slug, record = released.manifest, released.slug, released.record
    (library,) = [file for file in record.files if file.path.endswith(".so")]
    recipe = replace(manifest.recipe, targets=(slug,), torch=OtherTorch(torches))
    reads = (released.delivery, released.folder)
    with Processes(workspace, recipe, reads=reads) as processes:
        jobs = processes.jobs
        intake = processes.graph.run(IntakeJob(released.delivery, jobs.staging))
        _require_same_delivery(manifest, intake, released.delivery)
        optimized = processes.graph.run(jobs.optimize())
        reference = processes.runner().run(jobs.reference(optimized))
        if passes := _passes_of_variant(record):
            # The package was compiled from what these made of the program.
            optimized = processes.graph.run(jobs.variant(record.chosen, passes))
        folder = released.folder / slug
        job = jobs.verify(slug, folder, library.digest, optimized, reference)
        yield processes, replace(job, atomic_sums=record.atomic_sums), reference


def _passes_of_variant(record: TargetRecord) -> tuple[PassChoice, ...]:
    """Return the passes of the variant that was chosen; none of the plain package."""
    words = record.chosen.split("+")
    return Search.variation(record.chosen).passes if all(word in KNOBS for word in words) else ()


def verify_released(
    stores: Stores, model: str, reference: str | int, target: str, scratch: Path
) -> str:
    """Pull a version and the delivery that was kept with it, and compare them again here.

    `target` is a slug, or `auto` for the best one that fits. Raises `PackageRefused` for one that
    isn't what was signed or doesn't fit, and `BlessingRefused` as `repeat_comparison` does.
    """
    folder = scratch / "version"
    pulled = pull(PullJob(model, reference, folder, target, stores, installed_torch()))
    trust = read_trust(stores.trusted)
    manifest = check_release(folder, installed_torch(), trust, unverified=True).manifest
    restored = restore(RestoreJob(stores, model, pulled.version, scratch / "delivery"))
    summary = repeat_comparison(folder, manifest, pulled.target, restored.folder)
    return f"{model} version {pulled.version}: {summary}"


def verify_with_torches(
    host: HostSettings, model: str, reference: str | int, target: str, versions: tuple[str, ...]
) -> tuple[int, str, tuple[TorchCheck, ...]]:
    """Pull a version and its delivery, and compare its package in other versions of torch.

    Returns the version, the target's slug and a check for each; the record stays as it was signed.
    Raises `EnvironmentLacking` for a torch that can't be had, and as `compare_with_torches` does.
    """
    with scratch_workspace(host.builds) as workspace:
        folder = workspace / "version"
        stores = host.stores
        pulled = pull(PullJob(model, reference, folder, target, stores, installed_torch()))
        trust = read_trust(stores.trusted)
        manifest = check_release(folder, installed_torch(), trust).manifest
        restored = restore(RestoreJob(stores, model, pulled.version, workspace / "delivery"))
        making = closing(StepProcess(TORCHES, workspace / "logs" / "torches.log"))
        with making as process:
            jobs = [MakeTorchJob(version, host.builds / "torch") for version in versions]
            torches = tuple(process.run(job) for job in jobs)
        released = ReleasedTarget(folder, manifest, pulled.target, restored.folder)
        checks = compare_with_torches(released, workspace, torches)
    return pulled.version, pulled.target, checks


def _require_same_delivery(manifest: Manifest, intake: IntakeResult, delivery: Path) -> None:
    if intake.digest != manifest.delivery:
        raise UsageProblem(
            f"{delivery} is not the delivery that {manifest.model} was released from",
            expected=manifest.delivery.short,
            got=intake.digest.short,
            remedy="Name the folder that was released",
        )


def _describe_comparison(
    manifest: Manifest, record: TargetRecord, reference: ReferenceResult, verified: VerifyResult
) -> str:
    slug = record.slug
    if not verified.accepted:
        raise BlessingRefused(
            f"{manifest.model}'s package for {slug} is not what was released, or not on this "
            "machine",
            expected="every output within the agreed tolerance",
            got="; ".join(verified.reasons[:5]),
            remedy="Compare the toolchains, and release it again",
        )
    if record.unverified:
        return (
            f"{slug}: right here{_format_gpu(record)} in {len(verified.deviations)} comparisons "
            f"({reference.plan.short}); it stays 'built, not yet verified' until it is released "
            "where its hardware is"
        )
    if _run_capability(record) in record.unverified_gpus:
        # Machine code that no GPU had run when it was released.
        return (
            f"{slug}: right here{_format_gpu(record)} in {len(verified.deviations)} comparisons "
            f"({reference.plan.short}); its record stays {record.unverified_gpus_text} until it is "
            "released where such a GPU is"
        )
    plan = "the recorded plan" if str(reference.plan) == manifest.plan else "another plan"
    return (
        f"{slug}: accepted again{_format_gpu(record)}, {len(verified.deviations)} comparisons on "
        f"{plan} ({reference.plan.short})"
    )


def _format_gpu(record: TargetRecord) -> str:
    """Return on which of its GPUs a package for several was run here, and on which it wasn't."""
    members = record.fit.gpu_members if record.fit else ()
    capability = _run_capability(record)
    if capability is None or len(members) < 2:
        return ""
    others = format_capabilities(member for member in members if member != capability)
    return f" on compute capability {format_capabilities([capability])} (not run on {others})"


def _run_capability(record: TargetRecord) -> int | None:
    """Return for which capability the machine code is that the first GPU here runs; None of none.

    It is what has run: packages are run on the first one.
    """
    here = host_gpu_capabilities()
    return matching_member(record.fit.gpu_members, here[0]) if record.fit and here else None
