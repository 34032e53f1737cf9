"""The numeric gate on packages that no compiler makes on purpose; test_compile.py has real ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.verify import reference
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.messages import ReferenceJob, VerifyResult
from tests.tasks.deliveries import write_delivery
from tests.tasks.verify.packages.functions import (
    Masked,
    affine,
    affine_reference,
    make_reference,
    masked,
    verify_functions,
)


class DoublesItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0) + 1.0


@pytest.mark.parametrize("module", [Masked(), DoublesItsInput()])
def test_the_model_itself_is_accepted(
    module: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, module)

    def model(inputs: Tensors) -> Tensors:
        return (module(*inputs),)

    result = verify_functions(monkeypatch, file, model, model)
    assert result.accepted, result.reasons


def test_a_model_that_works_in_place_has_a_reference_for_the_inputs_that_are_kept(
    tmp_path: Path,
) -> None:
    for case in reference.load_cases(make_reference(tmp_path, DoublesItsInput())):
        want = case.inputs[0] * 2.0 + 1.0
        torch.testing.assert_close(case.eager[0], want, equal_nan=True)
        torch.testing.assert_close(
            case.float64[0], want.double(), rtol=1e-6, atol=1e-6, equal_nan=True
        )


@pytest.mark.parametrize("instead", [0.0, math.inf])
def test_a_package_with_numbers_where_its_library_has_nan_is_refused(
    instead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())
    result = verify_functions(
        monkeypatch,
        file,
        masked,
        lambda inputs: (Masked()(*inputs).nan_to_num(nan=instead),),
    )
    assert any("model.pt2 and model.so give different bits" in r for r in result.reasons)


def test_a_package_that_holds_another_library_is_refused_whatever_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verify_functions(
        monkeypatch, affine_reference(tmp_path), affine, inside=b"another library"
    )
    (reason,) = result.reasons
    assert reason.startswith("model.pt2 holds another library than model.so: sha256:")


def test_a_package_of_another_dtype_than_its_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())
    result = verify_functions(
        monkeypatch,
        file,
        masked,
        lambda inputs: (Masked()(*inputs).double(),),
    )
    assert any("different bits" in reason for reason in result.reasons)


def test_a_case_that_can_not_be_run_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())

    def failing(inputs: Tensors) -> Tensors:
        if len(inputs[0]) == 17:
            raise RuntimeError("no kernel for 17")
        return (Masked()(*inputs),)

    result = verify_functions(monkeypatch, file, failing, failing)
    assert result.reasons == ("batch=17 seed=0: the package failed: no kernel for 17",)
    assert "batch=7 seed=0" in {deviation.case for deviation in result.deviations}


def test_a_reference_without_a_case_accepts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save([], tmp_path / "reference.pt")
    result = verify_functions(monkeypatch, tmp_path / "reference.pt", lambda x: x, lambda x: x)
    assert result.reasons == ("no case of the input plan could be compared",)


def test_a_package_that_drops_a_nan_is_refused_at_those_inputs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drops(inputs: Tensors) -> Tensors:
        return affine((inputs[0].nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf),))

    result = verify_functions(monkeypatch, affine_reference(tmp_path), drops)
    assert {reason.partition(",")[0] for reason in result.reasons} == {
        "batch=64 nan", "batch=7 nan in turns",
    }  # fmt: skip


def test_a_recipe_may_note_a_nan_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drops(inputs: Tensors) -> Tensors:
        return affine((inputs[0].nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf),))

    recipe = Recipe(verify=VerifyPlan(propagation="note"))
    file = affine_reference(tmp_path)
    result = verify_functions(monkeypatch, file, drops, recipe=recipe)
    assert result.accepted, result.reasons
    assert any(note.startswith("batch=64 nan, output 0: 1 of 1") for note in result.notes)

    def is_off(inputs: Tensors) -> Tensors:
        return (affine(inputs)[0] * 1.01,)

    assert not verify_functions(monkeypatch, file, is_off, recipe=recipe).accepted


class TakesNoNaN(nn.Module):
    """Eager refuses a NaN, so nothing can be compared there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.ones(3, device=x.device)
        return table[(x * 0.0).long()] + x


def test_what_the_model_itself_does_not_take_is_left_out_and_named(tmp_path: Path) -> None:
    delivery = write_delivery(tmp_path / "delivery", TakesNoNaN().eval(), {"x": torch.randn(6, 8)})
    take_in(IntakeJob(delivery, tmp_path / "staging"))
    job = ReferenceJob(tmp_path / "staging", None, VerifyPlan(seeds=1), tmp_path / "reference.pt")
    result = reference.run(job)
    assert any("nan: the model itself fails: index" in text for text in result.skipped)
    assert not any(name.endswith(" nan") for name in result.cases)
    again = reference.run(replace(job, file=tmp_path / "again.pt"))
    assert again.plan == result.plan, "the same inputs every time"


def test_a_tolerance_may_be_for_an_output_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = affine_reference(tmp_path)

    def off(inputs: Tensors) -> Tensors:
        return (affine(inputs)[0] * (1.0 + 1e-4),)

    assert not verify_functions(monkeypatch, file, off).accepted
    room = Tolerance(atol=1e-3, rtol=1e-3, rmse_floor=1e-3)
    for name, accepted in (("scores", True), ("float32", True), ("others", False)):
        recipe = Recipe(tolerance={name: room})
        result = verify_functions(monkeypatch, file, off, recipe=recipe)
        assert result.accepted is accepted, name


def test_a_package_that_writes_to_an_input_that_eager_leaves_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(inputs: Tensors) -> Tensors:
        outputs = affine(inputs)
        inputs[0].view(-1)[0] = 7.0
        return outputs

    result = verify_functions(monkeypatch, affine_reference(tmp_path), writes, affine)
    assert result.reasons
    assert all("writes something else to input 0 than eager does" in r for r in result.reasons)
    file = make_reference(tmp_path / "in place", DoublesItsInput())
    assert verify_functions(monkeypatch, file, lambda x: (DoublesItsInput()(*x),)).accepted
    result = verify_functions(monkeypatch, file, affine)
    assert "writes something else to input 0" in result.reasons[0], "eager does write to it"


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x) * 0.0 + 3.0, x + 1.0


def test_an_output_that_is_one_number_at_every_input_is_said_to_tell_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Constant())
    result = verify_functions(
        monkeypatch, file, lambda inputs: tuple(Constant()(*[t.clone() for t in inputs]))
    )
    assert result.blind == (0,)
    assert "output 0 is 3 at every input" in result.notes


class Squashes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


@pytest.mark.parametrize(
    ("agreed", "shows_nothing"),
    [
        (Tolerance(), False),
        # Its errors may be anywhere, and are few: the rule for all elements together holds.
        (Tolerance(atol=10.0, rtol=10.0), False),
        (Tolerance(rmse_factor=10.0, rmse_floor=10.0), False),
        (Tolerance(atol=10.0, rtol=10.0, rmse_floor=10.0), True),
    ],
)
def test_a_tolerance_that_one_number_would_keep_is_said_to_show_nothing(
    agreed: Tolerance, *, shows_nothing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Squashes())
    recipe = Recipe(tolerance={"float32": agreed})
    result = verify_functions(monkeypatch, file, lambda x: (x[0].tanh(),), recipe=recipe)
    assert result.accepted, result.reasons
    notes = [note for note in result.notes if "what was agreed shows nothing" in note]
    assert bool(notes) is shows_nothing
    squash = Squashes()
    wrong = verify_functions(
        monkeypatch, file,
        lambda x: (torch.where(x[0].isfinite() & (x[0].abs() < 1e3), 0.0, squash(x[0])),),
        recipe=recipe,
    )  # fmt: skip
    assert wrong.accepted is shows_nothing, wrong.reasons


def test_an_error_on_values_that_nobody_declared_is_noted_and_on_usual_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())

    def failing(is_refused: Callable[[torch.Tensor], bool]) -> VerifyResult:
        def package(inputs: Tensors) -> Tensors:
            if is_refused(inputs[0]):
                raise RuntimeError("did not converge")
            return (Masked()(*inputs),)

        return verify_functions(monkeypatch, file, package)

    verified = failing(lambda x: bool(x.isinf().any()))
    assert verified.accepted, verified.reasons
    assert any("infinite: the package failed: did not converge" in note for note in verified.notes)
    assert not failing(lambda x: bool((x > 2.0).any())).accepted


def test_the_model_is_read_again_only_where_an_element_lies_outside_what_was_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())
    reads = []

    def read(staging: Path) -> object:
        reads.append(staging)
        return read_delivery(staging)

    monkeypatch.setattr(verify, "read_delivery", read)
    staging = tmp_path / "staging"
    right = verify_functions(monkeypatch, file, masked, staging=staging)
    assert right.accepted, right.reasons
    assert not reads
    wrong = verify_functions(
        monkeypatch, file, lambda inputs: (Masked()(*inputs) + 0.1,), staging=staging
    )
    assert not wrong.accepted
    assert reads == [staging]


class Best(nn.Module):
    """Which of two scores is the larger one, where rounding alone decides that for most rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.stack([x.sum(1) * 0.1, (x * 0.1).sum(1)], dim=1)
        return near.argmax(1)


def test_decisions_are_counted_over_all_cases_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, staging = make_reference(tmp_path, Best()), tmp_path / "staging"

    def deciding(share: float) -> VerifyResult:
        def library(inputs: Tensors) -> Tensors:
            decided = Best()(*inputs)
            rows = torch.arange(decided.numel())
            # Spread, so that no case has many.
            other = (rows * 0.618) % 1.0 < share
            return (torch.where(other, 1 - decided, decided),)

        return verify_functions(monkeypatch, file, library, staging=staging)

    few, many = deciding(0.03), deciding(0.6)
    assert not any("decided otherwise" in reason for reason in few.reasons), few.reasons
    assert any("decided otherwise" in reason for reason in many.reasons)
    assert any(deviation.reasons for deviation in many.deviations)
