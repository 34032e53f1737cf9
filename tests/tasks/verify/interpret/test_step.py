"""What a release claims of kernels that no GPU has run: what was seen, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from handoff.infra.engine.child import StepProcess
from handoff.tasks.compile.messages import KernelSource
from handoff.tasks.verify.interpret.messages import InterpretResult
from tests.tasks.compile.cross import models
from tests.tasks.verify.interpret.checking import (
    another,
    check,
    compiled_sources,
    interpreting,
)

pytestmark = [models.needs_known_torch, pytest.mark.compile]


@pytest.fixture(scope="module")
def sources() -> tuple[KernelSource, ...]:
    """What the kernels of the two layers are compiled from."""
    return compiled_sources(models.two_layers())


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepProcess]:
    """One for all of this file: it imports torch and Inductor first."""
    with interpreting(tmp_path_factory.getbasetemp()) as started:
        yield started


def _check(
    process: StepProcess, sources: tuple[KernelSource, ...], folder: Path
) -> InterpretResult:
    inputs = [(torch.randn(batch, 16),) for batch in (1, 7, 33)]
    return check(process, models.two_layers(), inputs, folder, sources)[0]


def test_kernels_are_run_at_the_cases_and_named_with_their_sources(
    process: StepProcess, sources: tuple[KernelSource, ...], tmp_path: Path
) -> None:
    found = _check(process, sources, tmp_path)
    assert found.reasons == ()
    assert found.checked is not None
    assert found.checked.kernels == {s.name: str(s.digest) for s in sources}
    assert found.checked.cases == ("batch=1 seed=0", "batch=7 seed=0", "batch=33 seed=0")
    assert found.checked.max_abs < 1e-5
    assert found.checked.programs > 3
    assert "kernels checked at source level: the sources of 2 kernels" in found.checked.text
    assert "not shown by that" in found.checked.text


def test_nothing_is_claimed_of_other_sources_than_those_in_the_package(
    process: StepProcess, sources: tuple[KernelSource, ...], tmp_path: Path
) -> None:
    found = _check(process, (another(sources[0]), *sources[1:]), tmp_path)
    assert (found.checked, found.reasons) == (None, ())
    assert f"{sources[0].name} isn't the one that was compiled" in found.unchecked


class Branching(torch.nn.Module):
    """Has one of two branches carried out, `[N, 16]` to the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return found


def test_what_can_not_be_carried_out_is_left_unchecked_and_says_why(
    process: StepProcess, tmp_path: Path
) -> None:
    program = models.exported(Branching(), torch.randn(8, 16))
    found = check(process, program, [(torch.randn(3, 16),)], tmp_path, ())[0]
    assert (found.checked, found.reasons) == (None, ())
    assert "branches or loops" in found.unchecked
