"""Measures a delivery's metric on pairs of eager's outputs and a package's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from handoff.artifacts.delivery.metric import MeasuredMetric, Metric, MetricRule
from handoff.tasks.verify.metric.pairs import (
    Drop,
    area,
    drop_of_auc,
    drop_of_errors,
    drop_of_shares,
)
from handoff.tasks.verify.metric.samples import NotComputable, sample_values, scores_of

# Of some samples, by eager and by the package, and their labels (None where there are none).
Pair = tuple[Tensor, Tensor, Tensor | None]

# What is told where nothing was agreed.
_UNAGREED = MetricRule(1.0)


def measure_metric(
    metric: Metric, output: str, rule: MetricRule | None, data: str, pairs: Iterable[Pair]
) -> MeasuredMetric:
    """Return the metric of both, and what is lost of it, over all `pairs`.

    Outputs are `[rows, ...]` of real numbers, labels as the metric wants them; `output` is the
    name of the one that they are of, `data` the samples' digest. Raises `NotComputable` where the
    metric isn't made of such outputs and labels.
    """
    confidence = (rule or _UNAGREED).confidence
    if metric.family == "auc":
        drop, samples = _areas(pairs, confidence)
    else:
        drop, samples = _means(metric, pairs, confidence)
    measured = MeasuredMetric(
        metric.name, output, samples, drop.eager, drop.package, drop.value, drop.low, drop.high,
        metric.kind.is_error, confidence, data, rule.max_drop if rule else None,
    )  # fmt: skip
    if measured.standing != "not known" or rule is None:
        return measured
    return replace(measured, enough=drop.enough(rule.max_drop))


def value_of(metric: Metric, outputs: Iterable[tuple[Tensor, Tensor | None]]) -> tuple[float, int]:
    """Return the metric of outputs with their labels, and of how many samples it is.

    Both are as in `measure_metric`. Raises `NotComputable`.
    """
    pairs = ((output, output, labels) for output, labels in outputs)
    if metric.family == "auc":
        _, scores, truth = _ranked(pairs)
        return area(scores, truth), truth.numel()
    values, _ = _paired(metric, pairs)
    mean = float(values.mean())
    return (math.sqrt(mean) if metric.family == "rmse" else mean), values.numel()


def _means(metric: Metric, pairs: Iterable[Pair], confidence: float) -> tuple[Drop, int]:
    eager, package = _paired(metric, pairs)
    if metric.kind.is_error:
        drop = drop_of_errors(eager, package, confidence, root=metric.family == "rmse")
    else:
        drop = drop_of_shares(eager, package.nan_to_num(0.0), confidence)
    return drop, eager.numel()


def _paired(metric: Metric, pairs: Iterable[Pair]) -> tuple[Tensor, Tensor]:
    """Return each sample's value by eager and by the package: float64 `[samples]` both."""
    eager, package = [], []
    for by_eager, by_package, labels in pairs:
        wanted = _labels(metric, by_eager, labels)
        eager.append(sample_values(metric, by_eager, wanted))
        package.append(sample_values(metric, by_package, wanted))
    if not eager or not sum(map(len, eager)):
        raise NotComputable("expected samples to compute the metric of, got none")
    return torch.cat(eager), torch.cat(package)


def _areas(pairs: Iterable[Pair], confidence: float) -> tuple[Drop, int]:
    eager, package, truth = _ranked(pairs)
    return drop_of_auc(eager, package, truth, confidence), truth.numel()


def _ranked(pairs: Iterable[Pair]) -> tuple[Tensor, Tensor, Tensor]:
    """Return each sample's score by eager and by the package, float64, and its truth, bool.

    All three are `[samples]`.
    """
    eager, package, truths = [], [], []
    for by_eager, by_package, labels in pairs:
        if labels is None:
            raise NotComputable("expected labels of 0 and 1, got none")
        scores, truth = scores_of(by_eager, labels)
        eager.append(scores)
        package.append(scores_of(by_package, labels)[0])
        truths.append(truth)
    truth = torch.cat(truths) if truths else torch.zeros(0, dtype=torch.bool)
    if not bool(truth.any()) or bool(truth.all()):
        raise NotComputable("expected labels of both kinds, 0 and 1, got one kind alone")
    # What is no number is no answer: it is ranked as the worst of its kind.
    scores = torch.cat(package)
    worst = torch.where(truth, -torch.inf, torch.inf).double()
    scores = torch.where(scores.isnan(), worst, scores)
    return torch.cat(eager), scores, truth


def _labels(metric: Metric, by_eager: Tensor, labels: Tensor | None) -> Tensor:
    if metric.is_known and not metric.kind.labels:
        return by_eager
    if labels is None:
        raise NotComputable(f"expected labels, which {metric.name} is made of, got none")
    return labels
