"""A metric's value for each sample: what a mean, and pairs of eager and a package, are made of.

The libraries that compute these metrics give one number for all samples; a pair needs each
sample's own. Tests hold the means against scikit-learn's. Outputs and labels have one row a sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from handoff.artifacts.delivery.metric import IGNORED, Metric

# An extension's: it takes outputs and labels, `[rows, ...]` each, and gives `[rows]` from 0 to 1.
ExtensionMetric = Callable[[Tensor, Tensor], Tensor]
EXTENSION_METRICS: dict[str, ExtensionMetric] = {}


class NotComputable(ValueError):
    """Outputs or labels aren't what the metric is computed of; the message says what is."""


def sample_values(metric: Metric, output: Tensor, labels: Tensor) -> Tensor:
    """Return the metric's value for each sample that counts: float64 `[rows]`.

    `output` is `[rows, ...]`, of real numbers, `labels` as the metric wants them: eager's output
    for those that compare with it. For `rmse` it is the squared error, whose mean's root that is.
    Raises `NotComputable`.
    """
    if output.dim() == 0 or labels.dim() == 0 or output.shape[0] != labels.shape[0]:
        shapes = f"{list(output.shape)} and {list(labels.shape)}"
        raise NotComputable(f"expected an output and labels with one row a sample, got {shapes}")
    if metric.is_known:
        values = _FAMILIES[metric.family](output, labels, metric.count)
    elif (function := EXTENSION_METRICS.get(metric.name.partition(":")[2])) is not None:
        values = _call_extension(metric.name, function, output, labels)
    else:
        raise NotComputable(f"expected {metric.name} of an extension that the recipe names")
    return values.double()


def scores_of(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return one score and one truth for each sample, as `auc` takes them: float64, bool `[rows]`.

    `output` is `[rows]`, `[rows, 1]`, or `[rows, 2]` with a score for no and one for yes; `labels`
    are 0 and 1. Raises `NotComputable` for others.
    """
    rows = labels.reshape(labels.shape[0], -1) if labels.dim() else labels
    if rows.dim() != 2 or rows.shape[1] != 1 or not bool(((rows == 0) | (rows == 1)).all()):
        raise NotComputable("expected a label of 0 or 1 for each row, got others")
    scores = output.double().reshape(output.shape[0], -1) if output.dim() else output
    if scores.dim() != 2 or scores.shape[1] not in (1, 2) or scores.shape[0] != rows.shape[0]:
        raise NotComputable(f"expected one score a row, or two, got {list(output.shape)}")
    score = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
    return score, rows[:, 0] == 1


def _call_extension(name: str, function: ExtensionMetric, output: Tensor, labels: Tensor) -> Tensor:
    try:
        values = function(output, labels)
    except Exception as error:
        raise NotComputable(
            f"expected {name} of the extension to be computed, got {type(error).__name__}: {error}"
        ) from error
    if not isinstance(values, Tensor) or values.shape != output.shape[:1]:
        raise NotComputable(f"expected {name} of the extension to give one number a row")
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise NotComputable(f"expected {name} of the extension to give numbers from 0 to 1")
    return values


def _arrange_by_class(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits `[rows, places, classes]` and labels `[rows, places]`, whole numbers.

    Classes are in axis 1, as torch's losses have them, or in the last one, as transformers do.
    """
    if labels.is_floating_point() or labels.is_complex() or output.dim() < 2:
        shapes = f"{list(output.shape)} and {labels.dtype} {list(labels.shape)}"
        raise NotComputable(f"expected a number for each class, and whole numbers, got {shapes}")
    labels = labels.long()
    if labels.shape == (output.shape[0], *output.shape[2:]):
        logits = output.movedim(1, -1)
    elif labels.shape == output.shape[:-1]:
        logits = output
    else:
        raise NotComputable(
            f"expected labels of the output's shape without its classes, got {list(labels.shape)} "
            f"for {list(output.shape)}"
        )
    rows, classes = output.shape[0], logits.shape[-1]
    counted = labels[labels != IGNORED]
    if counted.numel() and (int(counted.min()) < 0 or int(counted.max()) >= classes):
        raise NotComputable(
            f"expected labels from 0 to {classes - 1}, got {int(counted.min())} to "
            f"{int(counted.max())}"
        )
    return logits.reshape(rows, -1, classes).double(), labels.reshape(rows, -1)


def _mean_of_places(values: Tensor, labels: Tensor) -> Tensor:
    """Return each row's mean over the places that count, without the rows that have none.

    `values` and `labels` are `[rows, places]`; the result is at most `[rows]`.
    """
    counts = labels != IGNORED
    some = counts.any(1)
    sums = torch.where(counts, values, 0.0).sum(1)
    return (sums / counts.sum(1).clamp_min(1))[some]


def _top_k(output: Tensor, labels: Tensor, count: int) -> Tensor:
    logits, targets = _arrange_by_class(output, labels)
    target_scores = logits.gather(-1, targets.clamp_min(0)[..., None])
    classes = torch.arange(logits.shape[-1])
    # Of equal ones the first counts, as argmax has it; no number is no answer.
    before = (logits == target_scores) & (classes < targets[..., None])
    rank = ((logits > target_scores) | before).sum(-1)
    right = (rank < count) & target_scores[..., 0].isfinite() & ~logits.isnan().any(-1)
    return _mean_of_places(right.double(), targets)


def _log_loss(output: Tensor, labels: Tensor, _: int) -> Tensor:
    if _is_binary(output, labels):
        return functional.binary_cross_entropy_with_logits(
            *_binary_scores(output, labels), reduction="none"
        )
    logits, targets = _arrange_by_class(output, labels)
    return _mean_of_places(_gather_losses(-logits.log_softmax(-1), targets), targets)


def _log_loss_of_probabilities(output: Tensor, labels: Tensor, _: int) -> Tensor:
    tiny = torch.finfo(torch.float64).eps
    if _is_binary(output, labels):
        scores, targets = _binary_scores(output, labels)
        return functional.binary_cross_entropy(
            scores.clamp(tiny, 1 - tiny), targets, reduction="none"
        )
    probabilities, targets = _arrange_by_class(output, labels)
    return _mean_of_places(_gather_losses(-probabilities.clamp(tiny, 1.0).log(), targets), targets)


def _gather_losses(losses: Tensor, targets: Tensor) -> Tensor:
    return losses.gather(-1, targets.clamp_min(0)[..., None])[..., 0]


def _is_binary(output: Tensor, labels: Tensor) -> bool:
    return output.numel() == output.shape[0] == labels.numel()


def _binary_scores(output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores, targets = scores_of(output, labels)
    return scores, targets.double()


def _squared_error(output: Tensor, labels: Tensor, _: int) -> Tensor:
    return _errors(output, labels).square().mean(1)


def _absolute_error(output: Tensor, labels: Tensor, _: int) -> Tensor:
    return _errors(output, labels).abs().mean(1)


def _errors(output: Tensor, labels: Tensor) -> Tensor:
    got, want = _flatten_rows(output), _flatten_rows(labels)
    if got.shape != want.shape:
        raise NotComputable(
            f"expected labels of the output's shape, {list(output.shape)}, got {list(labels.shape)}"
        )
    return got - want


def _ndcg(output: Tensor, labels: Tensor, count: int) -> Tensor:
    from sklearn.metrics import ndcg_score

    if output.dim() != 2 or output.shape != labels.shape or output.shape[1] < 2:
        raise NotComputable(
            f"expected scores and relevances of two or more things a row, got "
            f"{list(output.shape)} and {list(labels.shape)}"
        )
    if bool((labels < 0).any()):
        raise NotComputable("expected relevances of 0 or more, got less")
    # What is no number is ranked last.
    lowest = torch.finfo(torch.float64).min
    scores = output.double().nan_to_num(lowest, neginf=lowest)
    rows = [
        ndcg_score(relevances[None], row_scores[None], k=count)
        for relevances, row_scores in zip(labels.double().numpy(), scores.numpy(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _cosine(output: Tensor, eager: Tensor, _: int) -> Tensor:
    return functional.cosine_similarity(_flatten_rows(output), _flatten_rows(eager), dim=1)


def _agreement(output: Tensor, eager: Tensor, _: int) -> Tensor:
    if not output.is_floating_point():
        return (_flatten_rows(output) == _flatten_rows(eager)).double().mean(1)
    if output.numel() == output.shape[0]:
        return ((_flatten_rows(output) > 0) == (_flatten_rows(eager) > 0))[:, 0].double()
    # No number is no answer.
    same = (output.argmax(1) == eager.argmax(1)) & ~output.isnan().any(1)
    return _flatten_rows(same).mean(1)


def _flatten_rows(tensor: Tensor) -> Tensor:
    return tensor.double().reshape(tensor.shape[0], -1)


_FAMILIES: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "top-K": _top_k,
    "log-loss": _log_loss,
    "log-loss-of-probabilities": _log_loss_of_probabilities,
    "rmse": _squared_error,
    "mae": _absolute_error,
    "ndcg@K": _ndcg,
    "cosine": _cosine,
    "agreement": _agreement,
}
