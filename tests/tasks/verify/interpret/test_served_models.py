"""The kernels of models that are served from GPUs, run without one; the slow ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram

from tests.tasks.compile.cross import models
from tests.tasks.verify.interpret.checking import check, interpreting

pytestmark = [models.needs_known_torch, pytest.mark.compile, pytest.mark.long]

Inputs = Callable[[int], tuple[Tensor, ...]]


def _ids(batch: int) -> tuple[Tensor, ...]:
    mask = torch.rand(batch, 16) > 0.2
    mask[:, 0] = True
    return torch.randint(0, 1000, (batch, 16)), mask.long()


def _histories(batch: int) -> tuple[Tensor, ...]:
    from examples.user_model import build

    _, inputs, _ = build()
    return tuple(tensor[:batch].contiguous() for tensor in inputs[:4])


SERVED: tuple[tuple[Callable[[], ExportedProgram], Inputs, tuple[int, ...]], ...] = (
    (models.user_model, _histories, (1, 2, 7)),
    (models.encoder, _ids, (1, 2, 7)),
    (models.transformer, lambda batch: (torch.randn(batch, 16, 64),), (1, 2, 7)),
    (models.decoder, lambda batch: (torch.randint(0, 1000, (batch, 16)),), (1, 2, 7)),
    (models.dlrm, lambda b: (torch.randn(b, 13), torch.randint(0, 1000, (b, 4, 3))), (1, 2, 7)),
    (models.resnet18, lambda batch: (torch.randn(batch, 3, 224, 224),), (1, 2)),
)


@pytest.mark.parametrize(
    ("make", "draw", "batches"), SERVED, ids=lambda v: getattr(v, "__name__", "")
)
def test_the_kernels_of_served_models_compute_what_eager_does(
    make: Callable[[], ExportedProgram], draw: Inputs, batches: tuple[int, ...], tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    torch.manual_seed(1)
    with interpreting(tmp_path) as process:
        found, seconds = check(process, make(), [draw(batch) for batch in batches], tmp_path)
    assert found.reasons == ()
    assert found.checked is not None, found.unchecked
    assert found.checked.unrun == ()
    record_property("summary", f"{seconds:.0f} s, {found.checked}")
