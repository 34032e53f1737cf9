"""The numeric gate on packages that no compiler makes on purpose; test_compile.py has real ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from artifacts.recipe import Recipe, VerifyPlan
from artifacts.steps import IntakeJob, ReferenceJob, VerifyJob, VerifyResult
from tasks import intake, reference, verify
from tasks.loading import Tensors
from tests.tasks.deliveries import write_delivery

Package = Callable[[Tensors], Tensors]


class Masked(nn.Module):
    """NaN wherever the input is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x < 0, torch.full_like(x, math.nan), x)


class DoublesItsInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0) + 1.0


def make_reference(tmp_path: Path, module: nn.Module) -> Path:
    """Return the file of the reference of `module`, made the way a release makes it."""
    delivery = write_delivery(tmp_path / "delivery", module.eval(), {"x": torch.randn(6, 8)})
    intake.run(IntakeJob(delivery, tmp_path / "staging"))
    job = ReferenceJob(tmp_path / "staging", None, VerifyPlan(seeds=1), tmp_path / "reference.pt")
    return reference.run(job).file


def verify_functions(
    monkeypatch: pytest.MonkeyPatch, file: Path, library: Package, package: Package
) -> VerifyResult:
    """Return the verdict on two functions in the place of `model.so` and `model.pt2`."""

    def checked(inputs: Tensors) -> Tensors:
        # As every package that is shipped does.
        if inputs[0].dtype is not torch.float32:
            raise RuntimeError("unmatched dtype")
        return library(inputs)

    monkeypatch.setattr(verify, "open_shared_library", lambda _: checked)
    monkeypatch.setattr(verify, "open_package", lambda _: package)
    return verify.run(VerifyJob(file.parent, file, Recipe()))


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
        torch.testing.assert_close(case.eager[0], want)
        torch.testing.assert_close(case.float64[0], want.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("instead", [0.0, math.inf])
def test_a_package_with_numbers_where_its_library_has_nan_is_refused(
    instead: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())
    result = verify_functions(
        monkeypatch,
        file,
        lambda inputs: (Masked()(*inputs),),
        lambda inputs: (Masked()(*inputs).nan_to_num(nan=instead),),
    )
    assert any("model.pt2 and model.so give different bits" in r for r in result.reasons)


def test_a_package_of_another_dtype_than_its_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_reference(tmp_path, Masked())
    result = verify_functions(
        monkeypatch,
        file,
        lambda inputs: (Masked()(*inputs),),
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
