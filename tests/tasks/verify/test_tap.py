"""Taps: an output that says nothing hides no fault, because inner values are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.compile import step as compiling
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.programs import load_program, save_program
from handoff.tasks.verify import reference, tap
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.messages import ReferenceJob, TapJob, VerifyJob, VerifyResult
from tests.tasks.deliveries import write_delivery
from tests.tasks.verify.compiled_stand_in import compile_program, install_package


class FreshHead(nn.Module):
    """As torchvision's ViT: the head starts as zeros, and so does every output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = torch.tanh(self.body(x))
        return self.head(inner), x.sum(1)


@dataclass(frozen=True)
class PreparedProgram:
    """The program of a delivery, and its reference."""

    folder: Path
    program: Path
    reference: Path


def prepare(folder: Path, module: nn.Module) -> PreparedProgram:
    inputs = {"x": torch.randn(6, 8)}
    write_delivery(folder / "delivery", module.eval(), inputs, batch=Dimension(1, 32))
    take_in(IntakeJob(folder / "delivery", folder / "staging"))
    optimized = optimize.run(OptimizeJob(folder / "staging", folder / "program", Recipe()))
    job = ReferenceJob(folder / "staging", None, VerifyPlan(seeds=1), folder / "reference.pt")
    return PreparedProgram(folder, optimized.program, reference.run(job).file)


Verified = Callable[[str, Path, Path], VerifyResult]


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """Verifies a program by a reference: what no compiler got wrong stands for its package."""

    def judge(name: str, program: Path, file: Path) -> VerifyResult:
        with monkeypatch.context() as patch:
            install_package(patch, compile_program(program), tmp_path / name)
            return verify.run(VerifyJob(tmp_path / name, file, Recipe()))

    return judge


@pytest.mark.compile
def test_a_fault_behind_a_head_of_zeros_is_seen_inside(tmp_path: Path, verified: Verified) -> None:
    right = prepare(tmp_path, FreshHead())
    wrong = load_program(right.program)
    wrong.state_dict["body.weight"] = nn.Parameter(wrong.state_dict["body.weight"] * 1.01)
    save_program(wrong, tmp_path / "wrong.pt2")
    outside = verified("outside", tmp_path / "wrong.pt2", right.reference)
    assert outside.accepted, "the outputs are the same zeros"
    assert outside.blind == (0,)
    tapped = tap.run(TapJob(right.program, right.reference, outside.blind, tmp_path / "right"))
    assert tapped.nodes == ("tanh (aten.tanh.default)",)
    # With what is inside as further outputs it can still be compiled, and is right.
    compiling.run(CompileJob(tapped.program, native_cpu_target(), tmp_path / "inside", {}))
    inside = verify.run(VerifyJob(tmp_path / "inside", tapped.reference, Recipe()))
    assert inside.accepted, inside.reasons
    assert not inside.blind
    # The wrong program's inner values against the right one's.
    other = tap.run(
        TapJob(tmp_path / "wrong.pt2", right.reference, outside.blind, tmp_path / "wrong")
    )
    assert not verified("wrong inside", other.program, tapped.reference).accepted


class Chaotic(nn.Module):
    """A tent map: each of 60 steps doubles the error of the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(x)
        for _ in range(60):
            x = 1.0 - 1.99 * x.abs()
        return x


@pytest.mark.compile
@pytest.mark.long
def test_an_output_that_rounding_decides_is_compared_where_it_is_still_comparable(
    tmp_path: Path,
) -> None:
    made = prepare(tmp_path, Chaotic())
    compiling.run(CompileJob(made.program, native_cpu_target(), tmp_path / "outside", {}))
    job = VerifyJob(tmp_path / "outside", made.reference, Recipe(), staging=tmp_path / "staging")
    outside = verify.run(job)
    assert outside.accepted, outside.reasons
    # The compiled arithmetic may be eager's to the bit; what matters is that it isn't refused.
    tapped = tap.run(TapJob(made.program, made.reference, (0,), tmp_path / "tapped"))
    assert len(tapped.nodes) >= 1
    last = max(int(name.partition(" ")[0].rpartition("_")[2] or 0) for name in tapped.nodes)
    assert last < 40, "the last steps are no more comparable than the output"
    compiling.run(CompileJob(tapped.program, native_cpu_target(), tmp_path / "inside", {}))
    inside = verify.run(
        VerifyJob(tmp_path / "inside", tapped.reference, Recipe(), program=tapped.program)
    )
    assert inside.accepted, inside.reasons
    assert not inside.incomparable


class Fixed(nn.Module):
    """An output that no input has a say in, beside one that every input has."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.threshold * 2.0, x + 1.0


def test_an_output_that_depends_on_no_input_has_nothing_inside(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, Fixed())
    tapped = tap.run(TapJob(prepared.program, prepared.reference, (0,), tmp_path / "tapped"))
    assert tapped.nodes == ()


class Kept(nn.Module):
    """A detector's last step: the boxes whose score is beyond a bar, which no drawn input takes."""

    def __init__(self, bar: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bar = bar
        self.box, self.score = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.sigmoid(self.score(x)).flatten()
        kept = scores > self.bar
        return self.box(x)[kept], scores[kept]


@pytest.mark.parametrize(("bar", "blind"), [(1.5, (0, 1)), (0.5, ())])
def test_outputs_that_are_empty_at_every_input_are_compared_inside(
    bar: float, blind: tuple[int, ...], tmp_path: Path, verified: Verified
) -> None:
    right = prepare(tmp_path, Kept(bar))
    wrong = load_program(right.program)
    wrong.state_dict["box.weight"] = nn.Parameter(wrong.state_dict["box.weight"] * 1.01)
    save_program(wrong, tmp_path / "wrong.pt2")
    outside = verified("outside", tmp_path / "wrong.pt2", right.reference)
    assert outside.accepted == bool(blind), "empty outputs are alike"
    assert outside.blind == blind
    if not blind:
        return
    assert "output 0 is empty at every input" in outside.notes
    tapped = tap.run(TapJob(right.program, right.reference, outside.blind, tmp_path / "right"))
    assert "linear_1 (aten.linear.default)" in tapped.nodes, "the boxes, before they are chosen"
    inside = verified("inside", tapped.program, tapped.reference)
    assert inside.accepted, inside.reasons
    inner = tap.run(
        TapJob(tmp_path / "wrong.pt2", right.reference, outside.blind, tmp_path / "other")
    )
    assert not verified("found", inner.program, tapped.reference).accepted
