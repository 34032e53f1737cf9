"""Every careless delivery is named for what it is; the exporter mends what can be mended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from handoff.artifacts.errors import HandoffError
from handoff.tasks.deliver.capture.tracer import without_training_modules
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from tests.studies.corpus.careless import (
    CARELESS,
    CarelessDelivery,
    example_of,
    make_model,
    write_folder,
)
from tests.studies.corpus.table import judge_careless

BY_NAME = {careless.name: careless for careless in CARELESS}


@pytest.mark.parametrize("careless", CARELESS, ids=lambda careless: careless.name)
def test_a_careless_delivery_is_named_for_what_it_is(
    careless: CarelessDelivery, tmp_path: Path
) -> None:
    row = judge_careless(careless, tmp_path)
    assert careless.named in row.reasons, row
    assert row.outcome != "sound" or careless.name == "absolute_path"


@pytest.mark.parametrize(
    "name", ["loss_in_forward", "len_of_tensor", "item_call", "wrapped_function"]
)
def test_the_exporter_mends_what_can_be_mended(name: str, tmp_path: Path) -> None:
    model, example = make_model(BY_NAME[name]).eval(), example_of(BY_NAME[name])
    deliver(model, example, tmp_path / "toy", name="toy")
    fresh = torch.randn(5, 16)
    got = read_delivery(tmp_path / "toy").module(fresh)
    with without_training_modules():
        want = model(fresh, *example[1:])
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, want)


def test_nothing_is_left_behind_by_a_refusal(tmp_path: Path) -> None:
    write_folder(BY_NAME["own_leaf_not_importable"], tmp_path / "delivery")
    with pytest.raises(HandoffError, match="Gate"):
        take_in(IntakeJob(tmp_path / "delivery", tmp_path / "staging"))
    assert not (tmp_path / "staging").exists()


def test_the_absolute_path_is_all_that_is_wrong_with_that_delivery(tmp_path: Path) -> None:
    write_folder(BY_NAME["absolute_path"], tmp_path / "delivery")
    result = run(TraceabilityJob(tmp_path / "delivery"))
    assert {f.code for f in result.findings if f.severity == "limit"} == {"no-golden-outputs"}
