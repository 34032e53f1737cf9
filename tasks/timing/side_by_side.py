"""Side by side: a package beside the one that it may replace, call by call in turns.

Both are loaded as a server loads them, with their signatures verified.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.tasks.timing.messages import SideBySideJob
from handoff.tasks.timing.race import race_in_turns, summarize
from handoff.tasks.verify.loading import Tensors


def run(job: SideBySideJob) -> SideBySide:
    """Return how many times as fast the second release is as the first.

    Raises `PackageRefused` where one can't be opened.
    """
    models = [load(folder, keys=job.keys, target=job.target) for folder in job.folders]
    examples = load_file(job.folders[-1] / EXAMPLES_FILE)
    inputs = tuple(examples[f"0/inputs/{spec.name}"] for spec in models[-1].signature.inputs)
    before, after = race_in_turns([_called(model) for model in models], inputs)
    lap = summarize([after], [before])
    return SideBySide(
        target=job.target,
        sizes=", ".join("x".join(map(str, tensor.shape)) for tensor in inputs),
        ratio=lap.ratios[0],
        low=lap.ratios_low[0],
        high=lap.ratios_high[0],
        threads=torch.get_num_threads(),
    )


def _called(model: LoadedModel) -> Callable[[Tensors], object]:
    return lambda inputs: model(*inputs)
