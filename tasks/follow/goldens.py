"""Tries a release: warms it up on its examples, and compares with what the original model gave."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load as read_tensors

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.delivery.golden import golden_difference
from handoff.artifacts.errors import InputsRefused, PackageRefused, first_line
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.artifacts.serve.sealing import seal_file
from handoff.tasks.follow.messages import TryReleaseJob, TryReleaseResult

_EXAMPLE_PREFIX = "example="


def warm_up(model: LoadedModel, folder: Path) -> int:
    """Call the model on the examples in its pulled `folder`; return how many there are.

    Outputs have to be those of the original model, as far as another machine's rounding goes, or as
    far beside them as the release measured when it was accepted. Raises `PackageRefused` for others
    and for an example that the package refuses.
    """
    examples = _read_examples(model, folder)
    count = 1 + max((int(name.partition("/")[0]) for name in examples), default=-1)
    for index in range(count):
        outputs = _call_on_example(model, examples, index)
        for output, got in enumerate(outputs):
            want = examples.get(f"{index}/outputs/{output}")
            if want is None:
                continue
            mismatch = golden_difference(
                got.cpu(), want, room=_measured_deviation(model, index, output)
            )
            if mismatch:
                raise PackageRefused(
                    f"{_format_name(model)} doesn't give the original model's outputs on example "
                    f"{index}",
                    expected="what the release holds, as near as it was when it was accepted",
                    got=f"{mismatch} in output {output}",
                    remedy="Roll back, look at what is other on this machine, and release it again",
                )
    return count


def _read_examples(model: LoadedModel, folder: Path) -> Mapping[str, torch.Tensor]:
    """Return the examples that were signed; none where the release has none."""
    for file in model.manifest.files:
        if file.path == EXAMPLES_FILE:
            sealed = seal_file(folder, file, hold=False)
            with os.fdopen(sealed, "rb") as stream:
                stream.seek(0)
                return read_tensors(stream.read())
    return {}


def _call_on_example(
    model: LoadedModel, examples: Mapping[str, torch.Tensor], index: int
) -> Sequence[torch.Tensor]:
    device = "cuda" if model.target.startswith("cuda") else "cpu"
    # Copies, because a model may change its inputs in place.
    inputs = [
        examples[f"{index}/inputs/{spec.name}"].clone().to(device)
        for spec in model.signature.inputs
    ]
    try:
        return model.tensors(*inputs)
    except (RuntimeError, InputsRefused) as error:
        raise PackageRefused(
            f"{_format_name(model)} can't be called on example {index} of its own release",
            expected="outputs", got=first_line(error),
            remedy="Don't promote it: look at its report, and release it again",
        ) from error  # fmt: skip


def _measured_deviation(model: LoadedModel, index: int, output: int) -> float:
    """Return how far the output lay from eager's on that example when it was accepted."""
    (record,) = (target for target in model.manifest.targets if target.slug == model.target)
    label = f"{_EXAMPLE_PREFIX}{index}"
    deviations = (
        deviation.max_abs
        for deviation in record.deviations
        if deviation.output == output and label in deviation.case.split()
    )
    return max(deviations, default=0.0)


def _format_name(model: LoadedModel) -> str:
    return f"{model.manifest.model} version {model.version}"


def try_release(job: TryReleaseJob) -> TryReleaseResult:
    """Open the package, call it on its examples, and compare with what the release holds.

    Raises `PackageRefused` for one that isn't as it was signed, doesn't fit or gives others.
    """
    model = load(
        job.folder, keys=job.keys, name=job.model, version=job.version, target=job.target,
        file=job.file,
    )  # fmt: skip
    return TryReleaseResult(warm_up(model, job.folder))
