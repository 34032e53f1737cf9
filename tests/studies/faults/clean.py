"""How often a right package is refused: releases of small models of many kinds.

Each family is compiled once for each dtype; the other seeds' weights are put into the code that the
cache holds, as they are for a user who releases the next version of a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.verify.messages import VerifyResult
from tests.studies.faults import family_models as fm
from tests.studies.faults.releasing import (
    FIGURES_FILE,
    ToyModel,
    Verifier,
    compile_prepared,
    keep_figures,
    prepare,
    refusal_of,
)
from tests.studies.faults.toys import TOYS, floats, ids

SEEDS = 6
_F32, _F64, _BF16, _F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
_ALL = (_F32, _F64, _BF16, _F16)
_MOST = (_F32, _F64, _BF16)


@dataclass(frozen=True)
class Family:
    """A model that is released with several seeds, in the dtypes that eager runs it in here."""

    model: ToyModel
    dtypes: tuple[torch.dtype, ...]

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name


class _ScaledInput(nn.Module):
    """A model without weights, on inputs that differ from seed to seed."""

    def __init__(self, inner: nn.Module, *shape: int) -> None:
        super().__init__()
        self.inner = inner
        self.factor = nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x * self.factor)


def _scaled_toy(name: str, *shape: int) -> ToyModel:
    toy = TOYS[name]
    return replace(toy, build=lambda: _ScaledInput(toy.build(), *shape))


FAMILIES: tuple[Family, ...] = (
    Family(TOYS["perceptron"], _ALL),
    Family(TOYS["attention"], _MOST),
    Family(TOYS["embedded"], _MOST),
    Family(TOYS["convolutional"], _ALL),
    Family(TOYS["recurrent"], (_F32, _F64)),
    Family(TOYS["elementwise"], _MOST),
    Family(_scaled_toy("reductions", 1003), _MOST),
    Family(_scaled_toy("whole-batch", 1003), _ALL),
    Family(ToyModel("signed sums", fm.SignedSums, floats(1003)), _MOST),
    Family(ToyModel("deep narrow", fm.DeepNarrow, floats(6)), _MOST),
    Family(ToyModel("regression head", fm.RegressionHead, floats(8)), _ALL),
    Family(ToyModel("group norm", fm.GroupNormed, floats(4, 21)), (_F32, _BF16)),
    Family(ToyModel("depthwise", fm.Depthwise, floats(6, 9, 9)), (_F32, _BF16)),
    Family(ToyModel("gated recurrent", fm.Gated, floats(7, 5)), (_F32,)),
    Family(ToyModel("many heads", fm.ManyHeads, floats(9, 16)), _MOST),
    Family(ToyModel("probabilities", fm.Probabilities, floats(12)), _ALL),
    Family(ToyModel("transcendental", fm.Transcendental, floats(13)), _MOST),
    Family(ToyModel("near zero", fm.NearZero, floats(10)), _ALL),
    Family(ToyModel("root mean square", fm.RootMeanSquare, floats(5, 16)), (_F32, _BF16)),
    Family(ToyModel("decisions", fm.Decisions, floats(8)), _ALL),
    Family(ToyModel("recommender", fm.Recommender, ids(4, 200)), _MOST),
    Family(ToyModel("ordered", fm.Ordered, floats(30)), _MOST),
    Family(ToyModel("enlarging", fm.Enlarging, floats(2, 7, 7)), (_F32, _BF16)),
    Family(ToyModel("wide range", fm.WideRange, floats(9)), (_F32, _F64)),
)


@dataclass(frozen=True)
class CleanRelease:
    """What happened to one release."""

    family: str
    dtype: str
    seed: int
    result: VerifyResult

    @property
    def refused(self) -> bool:
        """Return whether the right package was refused."""
        return bool(self.result.reasons)


def release_clean(families: Iterable[Family], seeds: int, folder: Path) -> Iterator[CleanRelease]:
    """Release each family with each seed in each of its dtypes; give what happened to each."""
    verifier = Verifier(folder / "verify.log")
    try:
        for family in families:
            for dtype in family.dtypes:
                for seed in range(seeds):
                    yield _release(family, dtype, seed, folder, verifier)
    finally:
        verifier.close()


def _release(
    family: Family, dtype: torch.dtype, seed: int, folder: Path, verifier: Verifier
) -> CleanRelease:
    name = str(dtype).removeprefix("torch.")
    workspace = folder / f"{family.name.replace(' ', '-')}-{name}-{seed}"
    try:
        prepared = prepare(family.model, workspace, Recipe(), seed=seed, dtype=dtype)
        compiled = compile_prepared(prepared, workspace, folder / "packages")
        result = verifier.verify(prepared, workspace, compiled)
    except HandoffError as error:
        result = refusal_of(error)
    plain = {"family": family.name, "dtype": name, "seed": seed}
    keep_figures(plain, result, folder / FIGURES_FILE)
    outcome = "; ".join(result.reasons) or "accepted"
    print(f"{family.name} {name} {seed}: {outcome}", file=sys.stderr, flush=True)
    return CleanRelease(family.name, name, seed, result)


def clean_table(releases: list[CleanRelease]) -> list[str]:
    """Return how many of each family were released and refused, and why, as Markdown.

    Of the reasons in one dtype the first one is shown.
    """
    lines = ["| family | dtypes | releases | refused | why |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(release.family for release in releases):
        own = [one for one in releases if one.family == name]
        why = []
        for dtype in dict.fromkeys(one.dtype for one in own):
            refused = [one for one in own if one.dtype == dtype and one.refused]
            if refused:
                reason = shorten(refused[0].result.reasons[0], 180, placeholder=" …")
                why.append(f"{len(refused)} in {dtype}: {reason}")
        dtypes = ", ".join(dict.fromkeys(one.dtype for one in own))
        count = sum(one.refused for one in own)
        lines.append(f"| {name} | {dtypes} | {len(own)} | {count} | {'; '.join(why)} |")
    return lines
