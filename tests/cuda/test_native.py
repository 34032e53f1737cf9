"""Packages for the GPU in this machine; skipped, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.machine.gpu import host_gpu_capabilities
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import CudaTarget
from handoff.tasks.compile import step as compiling
from handoff.tasks.compile.machine.native_gpu import can_compile
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob, OptimizeResult
from handoff.tasks.timing import benchmark
from handoff.tasks.timing.messages import BenchmarkJob
from handoff.tasks.verify import reference
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.messages import ReferenceJob, ReferenceResult, VerifyJob
from tests.tasks.deliveries import write_delivery

TARGETS = [CudaTarget(capability) for capability in dict.fromkeys(host_gpu_capabilities())]

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.compile,
    pytest.mark.skipif(
        not any(map(can_compile, TARGETS)), reason="there is no GPU that this torch can use"
    ),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 16, 3), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


def prepared(folder: Path) -> tuple[OptimizeResult, ReferenceResult]:
    inputs = {"x": torch.randn(6, 3, 16, 16)}
    write_delivery(folder / "delivery", Net().eval(), inputs, batch=Dimension(1, 64))
    take_in(IntakeJob(folder / "delivery", folder / "staging"))
    optimized = optimize.run(OptimizeJob(folder / "staging", folder / "program", Recipe()))
    job = ReferenceJob(folder / "staging", None, VerifyPlan(), folder / "reference.pt")
    return optimized, reference.run(job)


def test_a_native_package_is_accepted_timed_and_for_this_gpu(tmp_path: Path) -> None:
    (target,) = [target for target in TARGETS if can_compile(target)][:1]
    optimized, referred = prepared(tmp_path)
    folder = tmp_path / target.slug
    compiled = compiling.run(CompileJob(optimized.program, target, folder, {}))
    assert compiled.kernels
    assert compiled.fit.gpu_capability == target.sm
    assert compiled.fit.cuda == torch.version.cuda
    verified = verify.run(VerifyJob(folder, referred.file, Recipe(), target=target.slug))
    assert verified.accepted, verified.reasons
    timed = benchmark.run(BenchmarkJob(tmp_path / "staging", folder, referred.file, target.slug))
    assert timed.timings
    assert timed.apart < 1e-4
