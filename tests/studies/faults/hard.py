"""Hard but right models: each has to be released, and its report to say what was not compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.studies.faults import hard_models as hm
from tests.studies.faults.cases import Case, Inputs, Judge, Judgement

_COMPARED = "released, all elements compared"


@dataclass(frozen=True, kw_only=True)
class HardCase(Case):
    """A right model: what makes it hard to judge, and the verdict in words."""

    why: str
    verdict: str = _COMPARED


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Inputs]:
    """Return what draws one input of that shape behind a batch of 6."""
    return lambda: {"x": torch.randn(6, *shape).to(dtype)}


def _uniform(name: str, low: float, high: float, *shape: int) -> Callable[[], Inputs]:
    """Return what draws one input between `low` and `high`."""
    return lambda: {name: torch.rand(6, *shape) * (high - low) + low}


def _integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high + 1, (6, *shape))


def _masked_inputs() -> Inputs:
    return {"x": torch.randn(6, 9, 32), "mask": torch.rand(6, 9) < 0.6}


def _linear_system() -> Inputs:
    return {"x": torch.randn(6, 6, 6), "y": torch.randn(6, 6, 2)}


def _time_inputs() -> Inputs:
    return {"x": torch.randn(6, 6), "time": 1.7e9 + torch.rand(6, dtype=torch.float64) * 1e8}


def _scatter_inputs() -> Inputs:
    return {"values": torch.randn(6, 40), "ids": _integers(0, 7, 40)}


def _graph_inputs() -> Inputs:
    return {"x": torch.randn(200, 8), "edges": torch.randint(0, 200, (2, 3000))}


def _hard(
    name: str,
    why: str,
    build: Callable[[], nn.Module],
    draw: Callable[[], Inputs],
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: tuple[int, int] | None = (1, 64),
    verdict: str = _COMPARED,
    rtol: float = 1e-4,
    rows_are_apart: bool = True,
) -> HardCase:
    return HardCase(
        name=name, why=why, build=build, example=draw, shows=draw, ranges=ranges or {},
        batch=batch, verdict=verdict, rtol=rtol, rows_are_apart=rows_are_apart,
    )  # fmt: skip


_F16, _BF16, _F64 = torch.float16, torch.bfloat16, torch.float64
_NODES: dict[str, tuple[float, float]] = {"edges": (0, 199)}
_SIGNAL: dict[str, tuple[float, float]] = {"x": (-4, 4)}

HARD: tuple[HardCase, ...] = (
    _hard("softmax of large logits", "probabilities of 0 and 1, and logarithms of some hundreds",
          hm.LargeSoftmax, _normal(20)),
    _hard("masked attention", "a fused kernel, a mask of booleans", hm.MaskedAttention,
          _masked_inputs),
    _hard("log-sum-exp", "terms that differ by powers of e beyond float32", hm.LogSumExp,
          _normal(50)),
    _hard("nearly constant layer norm", "a mean of 100 beside a spread of 0.001",
          hm.NearlyConstantNorm, _normal(24), ranges=_SIGNAL, rtol=2e-2),
    _hard("inverse", "no C shim; amplifies by the condition number", hm.Whitened, _normal(6, 6),
          ranges=_SIGNAL, rtol=1e-3),
    _hard("solve", "no C shim; amplifies by the condition number", hm.Solved, _linear_system,
          ranges={"x": (-4, 4), "y": (-4, 4)}, rtol=1e-3),
    _hard("cholesky", "no C shim", hm.Choleskied, _normal(6, 6), ranges=_SIGNAL),
    _hard("singular values", "no C shim; a library's kernel by threads", hm.SingularValues,
          _normal(6, 5), ranges=_SIGNAL),
    _hard("eigenvalues", "no C shim; a library's kernel by threads", hm.EigenValues, _normal(6, 6),
          ranges=_SIGNAL),
    _hard("spectrum", "complex numbers inside", hm.Spectrum, _normal(64), ranges=_SIGNAL),
    _hard("low pass", "complex numbers inside, there and back", hm.LowPass, _normal(64),
          ranges=_SIGNAL),
    _hard("mel spectrogram", "complex numbers inside, a logarithm of what may be near 0",
          hm.MelSpectrogram, lambda: {"sound": torch.rand(6, 800) * 2 - 1},
          ranges={"sound": (-1, 1)}, rtol=1e-3),
    _hard("LSTM of 300 steps", "rounding goes on from step to step",
          lambda: hm.LongRecurrent(nn.LSTM), _normal(300, 3), batch=(1, 8)),
    _hard("GRU of 300 steps", "rounding goes on from step to step",
          lambda: hm.LongRecurrent(nn.GRU), _normal(300, 3), batch=(1, 8)),
    _hard("ties in sort and top-k", "many equal numbers, whose order a stable sort keeps",
          hm.Ranked, lambda: {"scores": _integers(0, 9, 30)}, ranges={"scores": (0, 9)}),
    _hard("hashing", "products that overflow int64, whose low digits decide", hm.Hashed,
          lambda: {"ids": _integers(0, 2**40, 7)}, ranges={"ids": (0, 2**40)}),
    _hard("class ids", "near ties of scores", hm.Classes, _normal(16),
          verdict="released, near ties within the rounding of the scores named and counted"),
    _hard("boolean outputs", "scores near the bound", hm.Alarms, _normal(16),
          verdict="released, scores at the bound named and counted"),
    _hard("decisions in bfloat16", "near ties of numbers of three digits",
          lambda: hm.HalfDecisions(_BF16), _normal(16, dtype=_BF16), ranges=_SIGNAL, rtol=2e-2,
          verdict="released, near ties that flip under rounding named and counted"),
    _hard("decisions in float16", "near ties of numbers of four digits",
          lambda: hm.HalfDecisions(_F16), _normal(16, dtype=_F16), ranges=_SIGNAL, rtol=4e-3,
          verdict="released, near ties that flip under rounding named and counted"),
    _hard("norm in float16", "squares beyond what float16 holds, which are made in float32",
          hm.HalfNorm, _normal(32, dtype=_F16), ranges=_SIGNAL, rtol=4e-3),
    _hard("float64 model", "differences in the tenth digit, and no wider type to tell by",
          hm.Precise, _normal(12, dtype=_F64), rtol=1e-12),
    _hard("scales of 1e-12 beside 1e12", "the one column's rounding is 1e17 times the other",
          hm.UnlikeScales, _normal(6)),
    _hard("score beside a timestamp", "the score is nothing beside 1.7e9", hm.ScoreAndTime,
          _time_inputs, ranges={"time": (1.7e9, 1.8e9)}),
    _hard("scatter with duplicates", "sums whose order may differ", hm.Scattered, _scatter_inputs,
          ranges={"ids": (0, 7)}),
    _hard("tent map", "chaotic: after 60 steps no digit is left", hm.TentMap,
          _uniform("x", 0.1, 0.9, 12), ranges={"x": (0.1, 0.9)}, rtol=2.0,
          verdict="released where it gives eager's own numbers; else only with the first screen "
                  "saying that it is not comparable, or refused for that"),
    _hard("long cumulative sums", "rounding adds up over 2000 steps", hm.LongSums, _normal(2000),
          batch=(1, 8)),
    _hard("group norm of nearly constant channels", "a spread of 1e-4 beside eps of 1e-5",
          hm.GroupNormed, _normal(8, 9, 9), ranges=_SIGNAL),
    _hard("batch of one", "fixed shapes, and nothing to draw rows from", hm.OneRow,
          lambda: {"x": torch.randn(1, 16)}, batch=None),
    _hard("cosine near 1", "what is left of 1 after 1 is taken off", hm.NearCosine, _normal(24),
          ranges=_SIGNAL, rtol=1.0),
    # Beyond 25 rows torch.export takes another formula, and so no size that may be on either side.
    _hard("distances", "differences of squares near 0", hm.Distances, _normal(8), ranges=_SIGNAL,
          batch=(1, 24)),
    _hard("quantised and back", "steps: a half is rounded to even", hm.QuantisedAndBack,
          _uniform("x", -1, 1, 16), ranges={"x": (-1, 1)}),
    _hard("mixed precision", "bfloat16 layers between float32 norms, casts written on purpose",
          hm.MixedPrecision, _normal(7, 32, dtype=_BF16), ranges=_SIGNAL, rtol=4e-2),
    _hard("buckets", "ages at the bounds", hm.Bucketed, _uniform("age", 0, 100, 5),
          ranges={"age": (0, 100)}),
    _hard("hour of the day", "a remainder of computed numbers that stay below the divisor",
          hm.HourOfDay, _uniform("hour", 1, 22, 8), ranges={"hour": (1, 22)}),
    _hard("mean of neighbours", "a mean over an edge list, some of it of nothing",
          hm.MeanOfNeighbours, _graph_inputs, ranges=_NODES, batch=None),
    _hard("sum of neighbours", "added atomically: other last bits in each call",
          hm.SumOfNeighbours, _graph_inputs, ranges=_NODES, batch=None),
    _hard("attention along edges", "a softmax over an edge list, added atomically",
          hm.GraphAttention, _graph_inputs, ranges=_NODES, batch=None),
    _hard("counts and means of groups", "how long bincount's result is, only the data tells",
          hm.Histogram, _scatter_inputs, ranges={"ids": (0, 7)}, rows_are_apart=False),
    _hard("rounded as in training", "fake quantisation: a half is rounded to even",
          hm.RoundedAsInTraining, _normal(16), ranges=_SIGNAL, rtol=2e-2,
          verdict="released, numbers at a step named and counted"),
)  # fmt: skip


def judge_hard(chosen: Iterable[HardCase], folder: Path) -> list[Judgement]:
    """Deliver and judge each; print each as it is known."""
    judge, rows = Judge(folder, localizes=False), []
    try:
        for case in chosen:
            judged = judge.judge(case)
            line = f"{case.name}: {judged.summary} ({judged.seconds:.0f} s)"
            print(line, file=sys.stderr, flush=True)
            rows.append(judged)
    finally:
        judge.close()
    return rows


def hard_table(rows: Iterable[Judgement]) -> list[str]:
    """Return what happened to the hard models, as Markdown."""
    lines = ["| model | hard because | must be | became |", "|---|---|---|---|"]
    for row in rows:
        case = row.case
        assert isinstance(case, HardCase)
        # What was set aside on ordinary inputs is shown as on a release's first screen.
        aside = [n for n in row.result.notes if "rounding alone" in n and "special" not in n]
        became = f"**{row.summary}**" if row.refused else "; ".join([row.summary, *aside])
        lines.append(f"| {case.name} | {case.why} | {case.verdict} | {became} |")
    return lines
