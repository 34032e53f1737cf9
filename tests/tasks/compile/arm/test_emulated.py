"""A package for ARM64, compiled here and run by an emulator: right ones pass, wrong ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import ArmTarget
from handoff.artifacts.release.mechanics import USUAL_LIMITS
from handoff.flows.steps import most_seconds
from handoff.tasks.compile.arm import cross_compilation
from handoff.tasks.compile.arm.sysroot import is_arm_host, lacking
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.compile.step import run as compile_package
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.probe import step as probe
from handoff.tasks.registry import assemble
from handoff.tasks.release.processes import Processes
from handoff.tasks.steps import PROBE
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.messages import ReferenceResult, VerifyJob, VerifyResult
from tests.limits import LIMIT_S
from tests.shared_tools import share_built
from tests.tasks.deliveries import write_delivery

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(is_arm_host(), reason="this machine runs such packages itself"),
    pytest.mark.skipif(
        not is_arm_host() and bool(lacking()),
        reason="'make arm-ready' was not run, or its tools aren't installed",
    ),
]
TARGET = ArmTarget("v8.2")


@dataclass(frozen=True)
class Built:
    """A small network compiled for ARM64, and what it is compared with."""

    processes: Processes
    optimized: OptimizeResult
    compiled: CompileResult
    reference: ReferenceResult
    signature: ModelSignature

    def verify(
        self, folder: Path, compiled: CompileResult, recipe: Recipe | None = None
    ) -> VerifyResult:
        """Compare the package in a folder with the reference, by its own recipe or another."""
        jobs = self.processes.jobs
        calls = jobs.calls(TARGET, folder, compiled, self.signature, self.reference.file)
        assert calls is not None
        job = VerifyJob(
            folder, self.reference.file, recipe or jobs.recipe, compiled.library.digest,
            target=TARGET.slug, staging=jobs.staging, program=self.optimized.reference, calls=calls,
        )  # fmt: skip
        return verify.run(job)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 4)).eval()
    folder = tmp_path_factory.mktemp("arm")
    delivery = write_delivery(folder / "delivery", module, {"input": torch.randn(6, 8)})
    recipe = Recipe(targets=(TARGET.slug,), verify=VerifyPlan(seeds=1))
    share_built(folder / "builds")
    with Processes(folder / "builds" / "workspace", recipe, delivery=delivery) as processes:
        intake = IntakeJob(delivery, processes.jobs.staging)
        taken = processes.graph.run(intake, limit_s=LIMIT_S)
        optimized = processes.graph.run(processes.jobs.optimize(), limit_s=LIMIT_S)
        compiling = processes.jobs.compile(optimized, TARGET)
        compiled = processes.compiler(TARGET).run(compiling, limit_s=LIMIT_S)
        referring = processes.jobs.reference(optimized)
        reference = processes.runner().run(referring, limit_s=LIMIT_S)
        signature = assemble.signature_of(taken.contract, optimized)
        yield Built(processes, optimized, compiled, reference, signature)


def test_a_package_says_that_it_is_for_arm64_and_holds_no_more_than_its_level(
    built: Built,
) -> None:
    fit = built.compiled.fit
    assert fit.machine == "aarch64"
    assert set(built.compiled.instruction_sets) <= set(fit.cpu_flags)
    assert "asimd" in built.compiled.instruction_sets
    assert "aarch64" in (fit.misfit(None) or "")
    assert "aarch64-linux-gnu" in built.compiled.toolchain["compiler"]


def test_its_numbers_are_verified_under_emulation_and_it_survives_hostile_inputs(
    built: Built,
) -> None:
    verified = built.verify(built.processes.jobs.package(TARGET), built.compiled)
    assert verified.accepted, verified.reasons
    assert not verified.left_out
    assert max(deviation.max_abs for deviation in verified.deviations) < 1e-5
    jobs, reference = built.processes.jobs, built.reference.file
    probed = probe.run(jobs.probe(TARGET, built.compiled, built.signature, reference))
    assert probed.accepted, probed.reasons
    assert {replay.threads for replay in probed.mechanics.replays} == {1, 2, 8}
    assert probed.mechanics.trials


def test_under_emulation_an_answer_may_take_longer_and_a_step_too(built: Built) -> None:
    jobs, reference = built.processes.jobs, built.reference.file
    job = jobs.probe(TARGET, built.compiled, built.signature, reference)
    assert job.limits.answer_s == 10 * USUAL_LIMITS.answer_s
    assert most_seconds(PROBE, TARGET.slug) == 10 * PROBE.limit_s
    assert most_seconds(PROBE, "cpu-avx2") == PROBE.limit_s


def test_without_time_for_more_the_two_smallest_sizes_are_compared_and_the_rest_is_listed(
    built: Built,
) -> None:
    plan = replace(built.processes.jobs.recipe.verify, emulated_seconds=0.0)
    recipe = replace(built.processes.jobs.recipe, verify=plan)
    verified = built.verify(built.processes.jobs.package(TARGET), built.compiled, recipe)
    assert verified.accepted, verified.reasons
    compared = {deviation.case for deviation in verified.deviations}
    assert {"batch=1 seed=0", "batch=2 seed=0"} <= compared
    left_out = {reason.partition(":")[0] for reason in verified.left_out}
    assert left_out == set(built.reference.cases) - {"batch=1 seed=0", "batch=2 seed=0"}
    assert not left_out & compared


def test_a_wrong_vector_width_is_refused_though_its_instructions_are_the_same(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Eight lanes are written for, and a vector has four: pytorch's pull request 196829.
    monkeypatch.setattr(cross_compilation.Neon, "_bit_width", 256)
    monkeypatch.setattr(cross_compilation.Neon, "_dtype_nelements", {torch.float: 8})
    job = replace(
        built.processes.jobs.compile(built.optimized, TARGET), folder=tmp_path / TARGET.slug,
        cache=None, shared=None,
    )  # fmt: skip
    wide = compile_package(job)
    assert wide.instruction_sets == built.compiled.instruction_sets
    verified = built.verify(job.folder, wide)
    assert not verified.accepted
    assert any(deviation.reasons for deviation in verified.deviations)
