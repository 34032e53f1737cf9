"""What comes along with a model: batches for int8 to choose its ranges by, and an evaluation.

An evaluation is samples with their labels, and the metric that is computed of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from handoff.artifacts.delivery.contract import (
    CALIBRATION_BATCHES,
    CALIBRATION_BYTES,
    Structure,
)
from handoff.artifacts.delivery.metric import EVALUATION_BATCHES, EVALUATION_BYTES, KINDS, Metric
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.errors import UsageProblem, did_you_mean, split_expected_got
from handoff.tasks.deliver.capture.calls import Call, Tensors, describe_call
from handoff.tasks.deliver.golden import evaluate_and_restore
from handoff.tasks.deliver.messages import Arguments
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.metric.measuring import compute_metric
from handoff.tasks.verify.metric.samples import NotComputable

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Batches by the names of the call's tensors, each with its labels, and the metric.

    Inputs are of the signature's shapes and dtypes, labels `[rows, ...]`, None where the metric
    compares with eager.
    """

    metric: Metric
    batches: tuple[Batch, ...]
    labels: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Datasets:
    """What a delivery brings beside the model and its examples."""

    calibration: tuple[Batch, ...] = ()
    evaluation: Evaluation | None = None

    def filter_by_shapes(self, shapes: Mapping[str, torch.Size]) -> Datasets:
        """Return the same without the batches whose tensors have other shapes."""

        def fits(batch: Batch) -> bool:
            return all(batch[name].shape == shape for name, shape in shapes.items())

        calibration = tuple(filter(fits, self.calibration))
        evaluation = self.evaluation
        if evaluation is not None:
            indices = [index for index, batch in enumerate(evaluation.batches) if fits(batch)]
            batches = tuple(evaluation.batches[index] for index in indices)
            labels = tuple(evaluation.labels[index] for index in indices)
            evaluation = Evaluation(evaluation.metric, batches, labels) if indices else None
        return Datasets(calibration, evaluation)


NO_DATASETS = Datasets()


def take_calibration(
    module: nn.Module,
    call: Call,
    calibration: Iterable[Arguments],
    keywords: Mapping[str, Any],
) -> tuple[Batch, ...]:
    """Return the batches, each once, by the names of the call's tensors.

    Each of `calibration` is what forward is called with, of the example's structure and dtypes;
    its sizes may be any that are declared. `keywords` are the example's, which count where a batch
    has none of its own. Raises `UsageProblem` for one that isn't, and for more
    than a delivery holds.
    """
    batches: dict[bytes, Batch] = {}
    size = 0
    for number, arguments in enumerate(calibration):
        where = f"batch {number} of the calibration"
        batch = _flatten_batch(where, module, call, arguments, keywords)
        digest = _digest_batch(batch)
        if digest in batches:
            continue
        batches[digest] = batch
        size += sum(tensor.nbytes for tensor in batch.values())
        _require_within_limits(where, len(batches), size, (CALIBRATION_BATCHES, CALIBRATION_BYTES))
    return tuple(batches.values())


def take_evaluation(
    module: nn.Module,
    call: Call,
    evaluation: Iterable[tuple[Arguments, torch.Tensor | None]],
    keywords: Mapping[str, Any],
    metric: str | Metric | None,
) -> Evaluation | None:
    """Return the samples by the names of the call's tensors; None where there are none.

    Each of `evaluation` is what forward is called with, and the labels of its rows. Raises
    `UsageProblem` for one that isn't, for more than a delivery holds, and where there are samples
    without a metric or the other way round.
    """
    batches, labels = [], []
    size = 0
    for number, pair in enumerate(evaluation):
        where = f"batch {number} of the evaluation"
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise _refuse(where, "a pair of forward's arguments and labels", type(pair).__name__)
        arguments, target = pair
        if not (target is None or isinstance(target, torch.Tensor)):
            raise _refuse(where, "labels in a tensor, or None", type(target).__name__)
        batches.append(_flatten_batch(where, module, call, arguments, keywords))
        labels.append(target)
        size += sum(t.nbytes for t in batches[-1].values()) + (
            0 if target is None else target.nbytes
        )
        _require_within_limits(where, len(batches), size, (EVALUATION_BATCHES, EVALUATION_BYTES))
    if metric is None and not batches:
        return None
    if metric is None or not batches:
        raise UsageProblem(
            "the evaluation can't be delivered",
            expected="samples, and the metric that they are for",
            got="a metric alone" if batches == [] else "samples alone",
            remedy='Give both: evaluation=[((x,), labels), ...], metric="top-1"',
        )
    return Evaluation(_parse_metric(metric), tuple(batches), tuple(labels))


def require_fitting(datasets: Datasets, signature: ModelSignature) -> None:
    """Raise `UsageProblem` for a batch of sizes that the signature doesn't declare."""
    evaluation = datasets.evaluation.batches if datasets.evaluation else ()
    for kind, batches in (("calibration", datasets.calibration), ("evaluation", evaluation)):
        for number, batch in enumerate(batches):
            try:
                signature.measure({spec.name: tuple(batch[spec.name].shape)
                                   for spec in signature.inputs})  # fmt: skip
            except ValueError as error:
                raise UsageProblem(
                    f"batch {number} of the {kind} can't be delivered",
                    expected="sizes that are served", got=str(error),
                    remedy="Give smaller batches, or declare what is served: dimensions={...}",
                ) from error  # fmt: skip


_ARGUMENTS_FORM = "a tuple of forward's arguments, or a dictionary of them by name"
# Metrics with a number, as they are written.
_METRIC_EXAMPLES = ("top-1", "top-5", "ndcg@10")


def _parse_metric(metric: str | Metric) -> Metric:
    try:
        return Metric(metric) if isinstance(metric, str) else metric
    except ValueError as error:
        expected, got = split_expected_got(str(error))
        raise UsageProblem(
            "the evaluation can't be delivered", expected=expected, got=got,
            remedy=did_you_mean(str(metric), (*_METRIC_EXAMPLES, *KINDS), "Fix the metric's name"),
        ) from error  # fmt: skip


def measure_eager(
    module: nn.Module, call: Call, evaluation: Evaluation, structure: Structure
) -> str:
    """Return a sentence with the metric of the model itself, in evaluation mode.

    `structure` names its outputs. Raises `UsageProblem` where the metric isn't made of such outputs
    and labels.
    """
    metric = evaluation.metric
    if not metric.is_known:
        return f"{metric.name} is computed at a release, by an extension that its recipe names"
    pairs = []
    with evaluate_and_restore(module), torch.no_grad():
        for batch, labels in zip(evaluation.batches, evaluation.labels, strict=True):
            tensors = tuple(batch[name] for name in call.names)
            outputs = call.select_outputs(flatten_tensors(call.run(module, tensors)))
            pairs.append((_select_output(metric, outputs, structure), labels))
    try:
        value, samples = compute_metric(metric, pairs)
    except ImportError as error:
        return f"{metric.name} is computed at a release: {error.name} isn't installed here"
    except NotComputable as error:
        expected, got = split_expected_got(str(error))
        raise UsageProblem(
            f"{metric.name} can't be computed of the evaluation",
            expected=expected, got=got,
            remedy="Fix the labels, or name the output: Metric('top-1', output='logits')",
        ) from error  # fmt: skip
    return f"{metric.name} of {samples} samples is {value:.4g} by the model itself"


def _select_output(metric: Metric, outputs: Tensors, structure: Structure) -> torch.Tensor:
    names = structure.names_of(len(outputs))
    try:
        return outputs[metric.place(names)].detach()
    except ValueError as error:
        raise UsageProblem(
            f"{metric.name} is of an output that the model doesn't have",
            expected=f"one of {', '.join(names)}", got=repr(metric.output[:60]),
            remedy="Fix the metric's output, or leave it out for the first one",
        ) from error  # fmt: skip


def _flatten_batch(
    where: str,
    module: nn.Module,
    call: Call,
    arguments: Arguments,
    keywords: Mapping[str, Any],
) -> Batch:
    if isinstance(arguments, Mapping):
        positional, keyword = (), {**keywords, **arguments}
    elif isinstance(arguments, Sequence) and not isinstance(arguments, str):
        positional, keyword = tuple(arguments), dict(keywords)
    else:
        raise _refuse(where, _ARGUMENTS_FORM, f"a {type(arguments).__name__}")
    try:
        batch_call, tensors = describe_call(module, positional, keyword)
    except UsageProblem as error:
        raise _refuse(where, f"{_ARGUMENTS_FORM} ({error.expected})", error.got) from error
    if batch_call.names != call.names:
        raise _refuse(where, f"the tensors {', '.join(call.names)}", ", ".join(batch_call.names))
    return dict(zip(batch_call.names, tensors, strict=True))


def _require_within_limits(where: str, count: int, size: int, most: tuple[int, int]) -> None:
    if count > most[0] or size > most[1]:
        expected = f"at most {most[0]} batches of {most[1] >> 20} MiB together"
        raise _refuse(where, expected, f"{count} of {size >> 20} MiB")


def _digest_batch(batch: Batch) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in batch.items():
        plain = tensor.detach().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _refuse(where: str, expected: str, got: str) -> UsageProblem:
    return UsageProblem(
        f"{where} can't be delivered", expected=expected, got=got,
        remedy="Give each batch as forward takes it, and enough to represent what is served",
    )  # fmt: skip
