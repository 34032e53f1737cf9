"""Measures a delivery's metric, and what a package loses of it, on pairs with eager's outputs.

Both saw the same samples, so that what makes some harder than others is in both and cancels: a drop
of a thousandth shows in samples of which a hundred times as many would be needed without pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from handoff.artifacts.delivery.metric import MeasuredMetric, Metric, MetricRule
from handoff.tasks.verify.metric.samples import NotComputable, sample_values, scores_of

# Fewer say nothing of how values spread.
_FEWEST = 30
# Of the probability to be wrong, for the samples that are lost; the rest is for those that are won.
_FOR_LOST = 0.8
_MOST_SAMPLES = 1e9


@dataclass(frozen=True)
class Drop:
    """Eager's value, the package's, and what is lost: between `low` and `high`.

    Each of both bounds holds with the probability that was asked for. `enough` returns for a
    `max_drop` how many samples like these would show it; 0 where no number would.
    """

    eager: float
    package: float
    value: float
    low: float
    high: float
    enough: Callable[[float], int]


def drop_of_shares(eager: Tensor, package: Tensor, confidence: float) -> Drop:
    """Return the drop of the mean of values from 0 to 1, of which more is better.

    Both are float64 `[samples]`. Of values that are 0 or 1 the bounds are exact (Clopper and
    Pearson, 1934, for those lost and those won, with the probability to be wrong divided among
    both), of others they are Student's.
    """
    lost = eager - package
    count, mean = lost.numel(), float(lost.mean())
    means = float(eager.mean()), float(package.mean())
    if bool(((lost == 0) | (lost.abs() == 1)).all()):
        worse, better = float((lost > 0).sum()), float((lost < 0).sum())

        def bounds_at(samples: float) -> tuple[float, float]:
            scale = samples / count
            return _exact_bounds(worse * scale, better * scale, samples, confidence)

        low, high = bounds_at(count)
        return Drop(
            *means, mean, low, high, lambda most: _search_samples(mean, most, count, bounds_at)
        )
    low, high = _student_bounds(lost, confidence)
    return Drop(*means, mean, low, high, lambda most: _extrapolate_samples(mean, high, most, count))


def drop_of_errors(
    eager: Tensor, package: Tensor, confidence: float, *, root: bool = False
) -> Drop:
    """Return by what share of eager's a mean error grows: float64 `[samples]` both.

    With `root` it is the root of the mean that is shown and that grows. Bounds are Student's of the
    ratio of the means (Fieller's approximation, 1954, where eager's mean is well known).
    """
    transform = math.sqrt if root else float
    means = float(eager.mean()), float(package.mean())
    values = transform(means[0]), transform(means[1])
    count = eager.numel()
    if not all(map(math.isfinite, means)) or means[0] == 0.0:
        growth = 0.0 if means[0] == means[1] else math.inf
        return Drop(*values, growth, growth, growth, lambda _: 0)
    ratio = means[1] / means[0]
    low, high = _student_bounds((package - ratio * eager) / means[0], confidence)
    bounds = [transform(max(ratio + side, 0.0)) - 1.0 for side in (low, high)]
    growth = transform(ratio) - 1.0
    return Drop(
        *values,
        growth,
        bounds[0],
        bounds[1],
        lambda most: _extrapolate_samples(growth, bounds[1], most, count),
    )


def drop_of_auc(eager: Tensor, package: Tensor, labels: Tensor, confidence: float) -> Drop:
    """Return the drop of the area under the ROC curve, of float64 scores and bool `[samples]`.

    Bounds are those of DeLong, DeLong and Clarke-Pearson, Comparing the areas under two or more
    correlated receiver operating characteristic curves, 1988, with Student's quantiles of the
    rarer class.
    """
    placements = [_placements(scores, labels) for scores in (eager, package)]
    areas = [float(positive.mean()) for positive, _ in placements]
    parts = [before - after for before, after in zip(*placements, strict=True)]
    rarer = min(part.numel() for part in parts)
    value = areas[0] - areas[1]
    if rarer < _FEWEST:
        low, high = -math.inf, math.inf
    else:
        error = math.sqrt(sum(float(part.var()) / part.numel() for part in parts))
        half = _quantile(confidence, rarer - 1) * error
        low, high = value - half, value + half
    count = eager.numel()
    return Drop(
        areas[0],
        areas[1],
        value,
        low,
        high,
        lambda most: _extrapolate_samples(value, high, most, count),
    )


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve of float64 scores and bool labels, `[samples]` both."""
    return float(_placements(scores, labels)[0].mean())


def _placements(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each positive the share of negatives below it, for each negative that of above.

    `scores` is float64, `labels` bool, `[samples]` both; a tie is half of each.
    """
    positive, negative = scores[labels], scores[~labels]
    sorted_negative, sorted_positive = negative.sort().values, positive.sort().values
    below = _ranks(sorted_negative, positive) / max(negative.numel(), 1)
    above = 1.0 - _ranks(sorted_positive, negative) / max(positive.numel(), 1)
    return below, above


def _ranks(ordered: Tensor, values: Tensor) -> Tensor:
    left = torch.searchsorted(ordered, values, side="left")
    right = torch.searchsorted(ordered, values, side="right")
    return (left + right).double() / 2.0


def _exact_bounds(
    worse: float, better: float, samples: float, confidence: float
) -> tuple[float, float]:
    """Return bounds of the share that is lost, of so many lost and won among the samples."""
    from scipy.special import betaincinv

    def least(count: float, wrong: float) -> float:
        return float(betaincinv(count, samples - count + 1, wrong)) if count else 0.0

    def most(count: float, wrong: float) -> float:
        return float(betaincinv(count + 1, samples - count, 1 - wrong)) if count < samples else 1.0

    first = (1.0 - confidence) * _FOR_LOST
    second = (1.0 - confidence) - first
    return least(worse, first) - most(better, second), most(worse, first) - least(better, second)


def _student_bounds(values: Tensor, confidence: float) -> tuple[float, float]:
    """Return bounds of the mean that float64 `[samples]` are drawn from."""
    count = values.numel()
    if count < _FEWEST:
        return -math.inf, math.inf
    half = _quantile(confidence, count - 1) * float(values.std()) / math.sqrt(count)
    mean = float(values.mean())
    return mean - half, mean + half


def _quantile(confidence: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, confidence))


def _search_samples(
    value: float, most: float, count: int, bounds_at: Callable[[float], tuple[float, float]]
) -> int:
    """Return the least number of samples whose upper bound is within `most`; 0 for none."""
    if value >= most:
        return 0
    low = high = float(count)
    while bounds_at(high)[1] > most:
        low, high = high, 2.0 * high
        if high > _MOST_SAMPLES:
            return 0
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if bounds_at(middle)[1] > most else (low, middle)
    return _round_up(high)


def _extrapolate_samples(value: float, high: float, most: float, count: int) -> int:
    """Return how many samples would do where a bound nears as the root of their number does."""
    if value >= most:
        return 0
    if not math.isfinite(high):
        return 2 * _FEWEST
    return _round_up(max(_FEWEST, count * ((high - value) / (most - value)) ** 2))


def _round_up(samples: float) -> int:
    """Return the number, rounded up to two digits."""
    step = int(10 ** max(0, math.floor(math.log10(samples)) - 1))
    return math.ceil(samples / step) * step


# Of some samples, by eager and by the package, and their labels (None where there are none).
Pair = tuple[Tensor, Tensor, Tensor | None]

# What is shown where nothing was agreed.
_DEFAULT_RULE = MetricRule(1.0)


def measure_metric(
    metric: Metric, output: str, rule: MetricRule | None, data: str, pairs: Iterable[Pair]
) -> MeasuredMetric:
    """Return the metric of both, and what is lost of it, over all `pairs`.

    Outputs are `[rows, ...]` of real numbers, labels as the metric wants them; `output` is the
    name of the one that they are of, `data` the samples' digest. Raises `NotComputable` where the
    metric isn't made of such outputs and labels.
    """
    confidence = (rule or _DEFAULT_RULE).confidence
    if metric.family == "auc":
        drop, samples, changed = _drop_of_areas(pairs, confidence)
    else:
        drop, samples, changed = _drop_of_means(metric, pairs, confidence)
    measured = MeasuredMetric(
        metric.name, output, samples, drop.eager, drop.package, drop.value, drop.low, drop.high,
        metric.kind.is_error, confidence, data, rule.max_drop if rule else None, changed=changed,
    )  # fmt: skip
    if measured.standing != "not known" or rule is None:
        return measured
    return replace(measured, enough=drop.enough(rule.max_drop))


def compute_metric(
    metric: Metric, outputs: Iterable[tuple[Tensor, Tensor | None]]
) -> tuple[float, int]:
    """Return the metric of outputs with their labels, and of how many samples it is.

    Both are as in `measure_metric`. Raises `NotComputable`.
    """
    pairs = ((output, output, labels) for output, labels in outputs)
    if metric.family == "auc":
        _, scores, truth = _collect_scores(pairs)
        return roc_auc(scores, truth), truth.numel()
    values, _ = _collect_values(metric, pairs)
    mean = float(values.mean())
    return (math.sqrt(mean) if metric.family == "rmse" else mean), values.numel()


@dataclass(frozen=True)
class SampleShortage:
    """So many samples were given, and `enough` would do: 0 where no number would."""

    samples: int
    enough: int


def find_sample_shortage(
    metric: Metric, rule: MetricRule, labels: Iterable[Tensor]
) -> SampleShortage | None:
    """Return how many samples lack for a package that changes nothing to be seen to keep the rule.

    `labels` are `[rows, ...]`. For `auc` it is the rarer label that counts. None where there are
    enough, though one that changes something may need more.
    """
    samples = _count_samples(metric, labels)
    if metric.kind.is_error or metric.family == "auc":
        return SampleShortage(samples, _FEWEST) if samples < _FEWEST else None

    def bounds_at(count: float) -> tuple[float, float]:
        return _exact_bounds(0.0, 0.0, count, rule.confidence)

    if samples and bounds_at(samples)[1] <= rule.max_drop:
        return None
    return SampleShortage(samples, _search_samples(0.0, rule.max_drop, max(samples, 1), bounds_at))


def _count_samples(metric: Metric, labels: Iterable[Tensor]) -> int:
    """Return of how many samples the metric is at most."""
    if metric.family != "auc":
        return sum(one.shape[0] for one in labels if one.dim())
    flat = torch.cat([one.reshape(-1) for one in labels])
    return min(int((flat == kind).sum()) for kind in (0, 1))


# With how many samples there are, and how many have another value: None where none has its own.
_MeasuredDrop = tuple[Drop, int, int | None]


def _drop_of_means(metric: Metric, pairs: Iterable[Pair], confidence: float) -> _MeasuredDrop:
    eager, package = _collect_values(metric, pairs)
    if metric.kind.is_error:
        drop = drop_of_errors(eager, package, confidence, root=metric.family == "rmse")
    else:
        drop = drop_of_shares(eager, package.nan_to_num(0.0), confidence)
    return drop, eager.numel(), int((eager != package).sum())


def _collect_values(metric: Metric, pairs: Iterable[Pair]) -> tuple[Tensor, Tensor]:
    """Return each sample's value by eager and by the package: float64 `[samples]` both."""
    eager, package = [], []
    for by_eager, by_package, labels in pairs:
        targets = _require_labels(metric, by_eager, labels)
        eager.append(sample_values(metric, by_eager, targets))
        package.append(sample_values(metric, by_package, targets))
    if not eager or not sum(map(len, eager)):
        raise NotComputable("expected samples to compute the metric of, got none")
    return torch.cat(eager), torch.cat(package)


def _drop_of_areas(pairs: Iterable[Pair], confidence: float) -> _MeasuredDrop:
    eager, package, truth = _collect_scores(pairs)
    return drop_of_auc(eager, package, truth, confidence), truth.numel(), None


def _collect_scores(pairs: Iterable[Pair]) -> tuple[Tensor, Tensor, Tensor]:
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


def _require_labels(metric: Metric, by_eager: Tensor, labels: Tensor | None) -> Tensor:
    if metric.is_known and not metric.kind.labels:
        return by_eager
    if labels is None:
        raise NotComputable(f"expected labels, which {metric.name} is made of, got none")
    return labels
