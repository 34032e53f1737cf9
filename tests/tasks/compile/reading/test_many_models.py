"""What Inductor writes of many models and operators is read without a refusal: takes minutes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.export import Dim, ExportedProgram

from handoff.tasks.compile.reading.literals import read_cpp
from tests.studies.faults.clean import FAMILIES
from tests.studies.faults.hard import HARD
from tests.studies.faults.releasing import make_module
from tests.studies.faults.reports.judging import REPORTS
from tests.tasks.compile.generated import generate

pytestmark = [pytest.mark.long, pytest.mark.compile]
# Of the conformance table's pairs of operator and dtype, one in so many.
_ONE_IN = 40
_OPTIONS: tuple[dict[str, object], ...] = ({}, {"freezing": True})


def read_all(program: ExportedProgram, options: dict[str, object]) -> None:
    for source in generate(program, options):
        assert source
        read_cpp(source)


def export(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    batch = Dim("batch", min=1, max=64)
    rows = inputs[0].shape[0] if inputs[0].dim() else None
    shapes = tuple({0: batch} if one.dim() and one.shape[0] == rows else {} for one in inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes)
        except Exception:  # noqa: BLE001 - a model of one size alone
            return torch.export.export(module, inputs)


@pytest.mark.parametrize("case", [*HARD, *REPORTS], ids=lambda case: case.name)
def test_what_is_written_of_models_that_are_hard_to_judge_is_read(case: object) -> None:
    assert isinstance(case, type(HARD[0]) | type(REPORTS[0]))
    torch.manual_seed(0)
    read_all(export(case.module(), tuple(case.example().values())), {})


@pytest.mark.parametrize("options", _OPTIONS, ids=["plain", "frozen"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_written_of_a_family_in_each_dtype_is_read(
    family: object, options: dict[str, object]
) -> None:
    assert isinstance(family, type(FAMILIES[0]))
    for dtype in family.dtypes:
        module = make_module(family.model, 0, dtype)
        read_all(export(module, tuple(family.model.inputs(dtype).values())), options)


def test_what_is_written_of_torchs_own_operator_samples_is_read() -> None:
    from handoff.tasks.conformance.bundling import capture, require_comparable
    from handoff.tasks.conformance.bundling import export as export_samples
    from handoff.tasks.conformance.conform import prepare
    from handoff.tasks.conformance.sampling import NoSamples, all_pairs, samples_of

    prepare()
    read = 0
    for pair in all_pairs()[::_ONE_IN]:
        try:
            samples = samples_of(pair)[:2]
            for sample in samples:
                require_comparable(sample)
                capture(sample)
            written = generate(export_samples(samples))
        except NoSamples:
            continue
        except Exception:  # noqa: BLE001 - what eager, the exporter or Inductor can't do
            continue
        for source in written:
            read_cpp(source)
        read += 1
    assert read > 20
