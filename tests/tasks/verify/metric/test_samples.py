"""Each sample's value: their means are what scikit-learn computes of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from handoff.artifacts.delivery.metric import IGNORED, Metric
from handoff.tasks.verify.metric.samples import (
    EXTENSION_METRICS,
    NotComputable,
    sample_values,
    scores_of,
)


def scikit() -> Any:
    """Return scikit-learn's metrics, whose import takes seconds, at the first need."""
    from sklearn import metrics

    return metrics


def _random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(1))


LOGITS, LABELS = _random_tensor(200, 7), _classes(7, 200)
SCORES, TRUTHS = _random_tensor(200, 1), _classes(2, 200)
RELEVANCE = _classes(4, 50, 9)
# Ties, as int8 makes them.
RANKED = (_random_tensor(50, 9) * 2).round() / 2


def _top(count: int) -> float:
    shares = LOGITS.softmax(1)
    return float(scikit().top_k_accuracy_score(LABELS, shares, k=count, labels=range(7)))


@pytest.mark.parametrize(
    ("name", "output", "labels", "expected"),
    [
        ("top-1", LOGITS, LABELS, lambda: scikit().accuracy_score(LABELS, LOGITS.argmax(1))),
        ("top-5", LOGITS, LABELS, lambda: _top(5)),
        ("log-loss", LOGITS, LABELS, lambda: scikit().log_loss(LABELS, LOGITS.double().softmax(1))),
        ("log-loss", SCORES, TRUTHS, lambda: scikit().log_loss(TRUTHS, SCORES.double().sigmoid())),
        ("log-loss-of-probabilities", LOGITS.softmax(1), LABELS,
         lambda: scikit().log_loss(LABELS, LOGITS.softmax(1).double())),
        ("log-loss-of-probabilities", SCORES.sigmoid(), TRUTHS,
         lambda: scikit().log_loss(TRUTHS, SCORES.sigmoid().double())),
        ("rmse", SCORES, SCORES * 1.1, lambda: scikit().mean_squared_error(SCORES * 1.1, SCORES)),
        ("mae", SCORES, SCORES * 1.1, lambda: scikit().mean_absolute_error(SCORES * 1.1, SCORES)),
        ("ndcg@5", RANKED, RELEVANCE,
         lambda: scikit().ndcg_score(RELEVANCE.numpy(), RANKED.numpy(), k=5)),
        ("cosine", LOGITS, LOGITS + 0.1,
         lambda: scikit().pairwise.cosine_similarity(LOGITS, LOGITS + 0.1).diagonal().mean()),
    ],
)  # fmt: skip
def test_the_mean_is_what_scikit_learn_computes(
    name: str, output: Tensor, labels: Tensor, expected: Callable[[], float]
) -> None:
    values = sample_values(Metric(name), output, labels)
    assert values.shape == (len(output),)
    assert float(values.mean()) == pytest.approx(float(expected()), rel=1e-6)


@pytest.mark.parametrize("axis", [1, -1])
def test_classes_may_be_where_torchs_losses_have_them_or_last(axis: int) -> None:
    logits = _random_tensor(6, 4, 5).movedim(-1, axis)
    labels = _classes(5, 6, 4)
    labels[0, 2:], labels[3] = IGNORED, IGNORED
    values = sample_values(Metric("log-loss"), logits, labels)
    loss = torch.nn.CrossEntropyLoss(reduction="none")(
        logits if axis == 1 else logits.movedim(-1, 1), labels
    )
    rows = [float(loss[row][labels[row] != IGNORED].double().mean()) for row in (0, 1, 2, 4, 5)]
    assert values.tolist() == pytest.approx(rows, rel=1e-5)


def test_of_equal_classes_the_first_counts_as_argmax_has_it() -> None:
    output = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    values = sample_values(Metric("top-1"), output, torch.tensor([0, 1]))
    assert values.tolist() == [1.0, 0.0]
    assert sample_values(Metric("top-2"), output, torch.tensor([0, 1])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["top-1", "agreement"])
def test_what_is_no_number_is_no_right_answer(name: str) -> None:
    output = torch.tensor([[0.0, torch.nan], [0.0, 1.0]])
    given = torch.tensor([1, 1]) if name == "top-1" else torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    assert sample_values(Metric(name), output, given).tolist() == [0.0, 1.0]


def test_agreement_is_the_same_class_the_same_side_or_the_same_number() -> None:
    agreement = Metric("agreement")
    assert sample_values(agreement, LOGITS, LOGITS + 5.0).mean() == 1.0
    sides = sample_values(agreement, torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [1.0]]))
    assert sides.tolist() == [1.0, 0.0]
    ids = sample_values(agreement, torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]]))
    assert ids.tolist() == [1.0, 0.5]


def test_two_scores_are_one_for_no_and_one_for_yes() -> None:
    scores, truths = scores_of(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([[1.0], [0.0]]))
    assert scores.tolist() == pytest.approx([0.6, -0.8])
    assert truths.tolist() == [True, False]


def test_an_extensions_metric_gives_a_number_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(output: Tensor, labels: Tensor) -> Tensor:
        return (output.argmax(1) == labels).float()

    monkeypatch.setitem(EXTENSION_METRICS, "ours", same)
    values = sample_values(Metric("own:ours"), LOGITS, LABELS)
    assert values.mean() == sample_values(Metric("top-1"), LOGITS, LABELS).mean()
    monkeypatch.setitem(EXTENSION_METRICS, "ours", lambda output, _: output.argmax(1) * 2.0)
    with pytest.raises(NotComputable, match="numbers from 0 to 1"):
        sample_values(Metric("own:ours"), LOGITS, LABELS)
    monkeypatch.setitem(EXTENSION_METRICS, "ours", lambda output, _: output)
    with pytest.raises(NotComputable, match="one number a row"):
        sample_values(Metric("own:ours"), LOGITS, LABELS)


@pytest.mark.parametrize(
    ("name", "output", "labels", "match"),
    [
        ("top-1", LOGITS, LABELS[:3], "one row a sample"),
        ("top-1", LOGITS, LABELS.float(), "whole numbers"),
        ("top-1", LOGITS, LABELS + 1, "labels from 0 to 6, got 1 to 7"),
        ("top-1", LOGITS, LOGITS.long(), "without its classes"),
        ("rmse", LOGITS, LABELS, r"labels of the output's shape, \[200, 7\], got \[200\]"),
        ("ndcg@3", RANKED, RELEVANCE - 3, "relevances of 0 or more"),
        ("ndcg@3", SCORES, SCORES, "two or more things"),
        ("own:ours", LOGITS, LABELS, "of an extension that the recipe names"),
    ],
)
def test_what_a_metric_is_not_made_of_is_told(
    name: str, output: Tensor, labels: Tensor, match: str
) -> None:
    with pytest.raises(NotComputable, match=match):
        sample_values(Metric(name), output, labels)


@pytest.mark.parametrize("labels", [LABELS, TRUTHS[:3], LOGITS])
def test_auc_takes_truths_alone(labels: Tensor) -> None:
    with pytest.raises(NotComputable):
        scores_of(SCORES, labels)
