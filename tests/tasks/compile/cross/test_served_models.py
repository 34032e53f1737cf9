"""The kinds of models that are served from GPUs, each compiled for two of them; the slow ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

from handoff.artifacts.machine.gpu import PROFILES
from handoff.tasks.compile.cross.build import compile_for
from tests.tasks.compile.cross import models
from tests.tasks.compile.cross.packages import embedded_weights

# "Cannot view a tensor ...": for CUDA, with a dynamic batch, by its own decomposition.
_ATTENTION = pytest.mark.skipif(
    torch.__version__.startswith("2.11."), reason="torch 2.11 can't decompose nn.Transformer's"
)

pytestmark = [models.needs_known_torch, pytest.mark.compile]


@pytest.mark.parametrize(
    ("make", "least", "slug"),
    [
        pytest.param(models.resnet18, 10, "sm_90", marks=pytest.mark.long),
        pytest.param(models.user_model, 5, "sm_90", marks=pytest.mark.long),
        pytest.param(models.encoder, 5, "sm_80", marks=pytest.mark.long),
        pytest.param(models.transformer, 5, "sm_90", marks=[_ATTENTION, pytest.mark.long]),
        pytest.param(models.transformer_and_dlrm, 10, "sm_80", marks=_ATTENTION),
        pytest.param(models.dlrm, 5, "sm_80", marks=pytest.mark.long),
        pytest.param(models.dlrm, 5, "sm_90", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_models_that_are_served_from_gpus_compile(
    make: Callable[[], ExportedProgram], least: int, slug: str, tmp_path: Path
) -> None:
    program = make()
    made = compile_for(program, PROFILES[slug], tmp_path / "out")
    assert made.inspection.capabilities == {PROFILES[slug].capability}
    assert len(made.kernels) >= least
    found = embedded_weights(made.package)
    for name, tensor in program.state_dict.items():
        # Counts of batches are left out, since nothing reads them.
        if name in found:
            assert found[name] == tensor.detach().numpy().tobytes(), name
    assert len(found) >= len(list(program.named_parameters()))
