"""Int8 beside float32, each released as a team would: speed, size, and what is lost.

python -m tests.studies.benchmarks.int8 [MODEL ...]

Each model is delivered with batches to calibrate by and samples to be compared with eager, and
released for `cpu-avx512-vnni` with a search: what float32 can do, and what int8 can. All variants
are timed in turns in one process, on the delivered example; a ratio is the median of the rounds'
own, with its 95 % interval. Weights are random where nothing is said, so that what is lost of the
cosine says how much int8 moves, and only the digits' top-1 what that is worth.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import handoff
from examples import digits, resnet18
from handoff.artifacts.delivery.metric import MetricRule
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.release.evidence import Candidate
from handoff.infra.terminal.console import print_table

FactoryResult = tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]
_FLOAT32 = ("freezing", "channels-last+freezing", "cpu-attention+freezing", "pool-with-attention")
_INT8 = ("int8", "channels-last+int8", "channels-last+int8-sums", "int8-dynamic")
_LEVEL = "cpu-avx512-vnni"
_BATCHES, _SAMPLES = 8, 8


def _linears() -> FactoryResult:
    torch.manual_seed(0)
    pairs = [(768, 3072), (3072, 768)] * 3
    layers = [layer for one in pairs for layer in (nn.Linear(*one), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), (torch.randn(64, 768),), {}


def _encoder() -> FactoryResult:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return model, (torch.randn(8, 64, 384),), {"dimensions": {"batch": (1, 16)}}


def _resnet18() -> FactoryResult:
    model, (image, *_), _ = resnet18.build()
    return model, (image[:1].repeat(4, 1, 1, 1),), {"dimensions": {"batch": (1, 8)}}


MODELS: dict[str, Callable[[], FactoryResult]] = {
    "digits": digits.build,
    "linears": _linears,
    "encoder": _encoder,
    "resnet18": _resnet18,
}


def main() -> None:
    """Release each model, and print a table of what float32 and int8 came to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    names = parser.parse_args().names
    load = psutil.getloadavg()[0]
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="handoff-int8-") as scratch:
            os.environ["HANDOFF_HOME"] = str(Path(scratch, "home"))
            rows.append((name, *_row(_release(MODELS[name](), name, Path(scratch)))))
            print(" | ".join(rows[-1]), flush=True)
    print_table(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load before: {load:.1f}",
        ("model", "float32 by", "int8 by", "int8 over float32", "over eager", "size", "lost"), rows,
    )  # fmt: skip


def _release(result: FactoryResult, name: str, scratch: Path) -> handoff.Manifest:
    model, inputs, options = result
    if "metric" not in options:
        others = [tuple(_like(one, n) for one in inputs) for n in range(_BATCHES + _SAMPLES)]
        options |= {
            "calibration": others[:_BATCHES],
            "evaluation": [(one, None) for one in others[_BATCHES:]],
            "metric": "cosine",
        }
    options.pop("name", None)
    handoff.deliver(model.eval(), inputs, scratch / "delivery", name=name, **options)
    recipe = Recipe(
        targets=(_LEVEL,), verify=VerifyPlan(seeds=1, max_bytes=1 << 28, propagation="note"),
        metric=MetricRule(0.05), search=Search(1800.0, (*_FLOAT32, *_INT8), "example"),
    )  # fmt: skip
    return handoff.release(scratch / "delivery", recipe=recipe).manifest


def _like(example: torch.Tensor, seed: int) -> torch.Tensor:
    """Return other rows of the example's shape: drawn, or for whole numbers and masks mixed."""
    generator = torch.Generator().manual_seed(seed)
    if example.is_floating_point():
        return torch.randn(example.shape, generator=generator)
    return example[torch.randint(len(example), (len(example),), generator=generator)]


def _row(manifest: handoff.Manifest) -> tuple[str, ...]:
    (target,) = manifest.targets
    plain, *_ = target.candidates
    timed = [one for one in target.candidates if one.accepted and one.ratios]
    float32 = max((one for one in timed if "int8" not in one.name), key=_speed)
    int8 = max((one for one in timed if "int8" in one.name), key=_speed, default=None)
    eager = {timing.case: timing for timing in target.timings}
    if int8 is None:
        why = "; ".join(reason for one in target.candidates for reason in one.reasons)
        return (float32.name, f"none: {why[:200]}", "-", "-", "-", "-")
    on_example = next((t for case, t in eager.items() if case.endswith("example=0")), None)
    over = f"{on_example.over_eager} ({target.chosen})" if on_example else "-"
    assert int8.metric is not None
    return (
        float32.name, int8.name, _over(int8, float32), over,
        f"{int8.size_bytes / plain.size_bytes:.2f}", int8.metric.brief,
    )  # fmt: skip


def _speed(one: Candidate) -> float:
    return one.speed("example")


def _over(one: Candidate, other: Candidate) -> str:
    """Return how many times as fast one is, bounded by both intervals to the plain package."""
    value = one.ratios[1] / other.ratios[1]
    low = one.ratios_low[1] / other.ratios_high[1]
    return f"{value:.2f} ({low:.2f} to {one.ratios_high[1] / other.ratios_low[1]:.2f})"


if __name__ == "__main__":
    main()
