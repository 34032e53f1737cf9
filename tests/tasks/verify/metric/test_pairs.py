"""Bounds of a drop hold as often as they say, and tell apart what samples can tell."""

from __future__ import annotations

import math

import pytest
import torch

from handoff.artifacts.delivery.metric import MeasuredMetric, Metric, MetricRule
from handoff.tasks.verify.metric.measuring import (
    Drop,
    Pair,
    SampleShortage,
    drop_of_auc,
    drop_of_errors,
    drop_of_shares,
    find_sample_shortage,
    measure_metric,
)
from handoff.tasks.verify.metric.samples import NotComputable


def roc_auc_score(labels: torch.Tensor, scores: torch.Tensor) -> float:
    # Here, since importing it takes seconds that other files' tests don't need.
    from sklearn import metrics

    return float(metrics.roc_auc_score(labels, scores))


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _share_that_holds(drops: list[Drop], truth: float) -> tuple[float, float]:
    return (
        sum(one.high >= truth for one in drops) / len(drops),
        sum(one.low <= truth for one in drops) / len(drops),
    )


@pytest.mark.parametrize(("lost", "won"), [(0.01, 0.0), (0.03, 0.01), (0.1, 0.1), (0.002, 0.001)])
def test_bounds_of_right_and_wrong_hold_as_often_as_they_say(lost: float, won: float) -> None:
    drops = []
    for seed in range(400):
        drawn = torch.rand(500, generator=_random(seed), dtype=torch.float64)
        eager = ((drawn < lost) | (drawn > 0.3)).double()
        package = (((drawn >= lost) & (drawn < lost + won)) | (drawn > 0.3)).double()
        drops.append(drop_of_shares(eager, package, 0.95))
    high, low = _share_that_holds(drops, lost - won)
    assert high >= 0.95
    assert low >= 0.95


def test_bounds_of_means_hold_as_often_as_they_say() -> None:
    drops, errors, roots = [], [], []
    for seed in range(400):
        size = torch.rand(300, generator=_random(seed), dtype=torch.float64)
        noise = torch.randn(300, generator=_random(seed + 1000), dtype=torch.float64)
        drops.append(drop_of_shares(size, size - 0.05 - 0.2 * noise, 0.95))
        errors.append(drop_of_errors(size, size * 1.2 + 0.1 * noise, 0.95))
        roots.append(drop_of_errors(size, size * 1.44 + 0.1 * noise, 0.95, root=True))
    for found, truth in ((drops, 0.05), (errors, 0.2), (roots, 0.2)):
        for share in _share_that_holds(found, truth):
            # Three standard deviations below 0.95, of 400.
            assert 0.917 <= share < 0.99


def test_bounds_of_areas_hold_as_often_as_they_say() -> None:
    def draw(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        labels = torch.rand(count, generator=_random(seed)) < 0.4
        shared = torch.randn(count, generator=_random(seed + 1), dtype=torch.float64)
        noise = torch.randn(count, generator=_random(seed + 2), dtype=torch.float64)
        eager = shared + 1.5 * labels
        return eager, eager + 0.5 * noise, labels

    drops = [drop_of_auc(*draw(3 * seed, 300), 0.95) for seed in range(400)]
    eager, package, labels = draw(5, 400_000)
    truth = float(roc_auc_score(labels, eager) - roc_auc_score(labels, package))
    for share in _share_that_holds(drops, truth):
        assert 0.917 <= share < 0.99
    one = draw(7, 300)
    assert drop_of_auc(*one, 0.95).eager == pytest.approx(roc_auc_score(one[2], one[0]))


def test_ties_are_half_an_area() -> None:
    labels = torch.tensor([True, False, True, False] * 20)
    scores = torch.tensor([1.0, 1.0, 0.0, 2.0] * 20, dtype=torch.float64)
    drop = drop_of_auc(scores, scores, labels, 0.95)
    assert drop.eager == pytest.approx(roc_auc_score(labels, scores))
    assert drop.value == 0.0


def _answers(right: int, of: int, classes: int = 2) -> torch.Tensor:
    """Return logits, for labels of 0, of which so many are right."""
    output = torch.zeros(of, classes)
    output[:right, 0], output[right:, 1] = 1.0, 1.0
    return output


def _top_1(right: int, of: int, most: float | None, confidence: float = 0.95) -> MeasuredMetric:
    rule = None if most is None else MetricRule(most, confidence)
    labels = torch.zeros(of, dtype=torch.long)
    pair: Pair = (_answers(of, of), _answers(right, of), labels)
    return measure_metric(Metric("top-1"), "logits", rule, "sha256:0", [pair])


def test_enough_samples_show_that_what_was_agreed_is_kept_or_broken() -> None:
    assert _top_1(1000, 1000, 0.005).standing == "kept"
    assert _top_1(998, 2000, 0.005).standing == "broken"
    assert _top_1(1990, 2000, None).standing == "not agreed"
    kept = _top_1(1999, 2000, 0.005)
    assert kept.standing == "kept"
    assert kept.text == (
        "top-1 of 2000 samples is 1 by eager and 0.9995 by the package: a drop of 0.0005 "
        "(-0.0023 to 0.0025, 0.95 sure); at most 0.0050 is agreed"
    )


def test_too_few_samples_say_how_many_would_do_and_so_many_do() -> None:
    few = _top_1(200, 200, 0.005)
    assert few.standing == "not known"
    assert 500 <= few.enough <= 800
    assert f"some {few.enough} samples" in few.text
    assert _top_1(few.enough, few.enough, 0.005).standing == "kept"
    assert _top_1(few.enough * 3 // 4, few.enough * 3 // 4, 0.005).standing == "not known"


def test_samples_of_which_none_changed_and_that_are_too_few_are_said_to_be_so() -> None:
    few, moved = _top_1(200, 200, 0.005), _top_1(199, 200, 0.005)
    assert (few.changed, moved.changed) == (0, 1)
    assert few.has_too_few_samples
    assert "not enough samples to tell, though none changed" in few.text
    assert moved.standing == "not known"
    # One that loses less of it may keep what was agreed.
    assert not moved.has_too_few_samples
    assert not _top_1(1000, 1000, 0.005).has_too_few_samples


@pytest.mark.parametrize(("count", "too_few"), [(16, True), (29, True), (30, False)])
def test_samples_of_which_no_bound_is_told_are_too_few_for_any_package(
    count: int, too_few: bool
) -> None:
    eager = torch.randn(count, 8)
    pairs = [(eager, eager + 1e-3 * torch.randn(count, 8), None)]
    found = measure_metric(Metric("cosine"), "y", MetricRule(0.05), "", pairs)
    assert found.changed
    assert found.has_too_few_samples is too_few
    assert ("not enough samples to tell:" in found.text) is too_few


@pytest.mark.parametrize("most", [0.004, 0.02, 0.3])
def test_samples_that_are_too_few_for_any_package_are_told_by_their_labels_alone(
    most: float,
) -> None:
    rule = MetricRule(most)

    def look(count: int) -> SampleShortage | None:
        return find_sample_shortage(Metric("top-1"), rule, torch.zeros(count).split(50))

    # From none to more than enough: shown as the verdict on an unchanged package has it.
    for count in range(1, 1200, 7):
        assert (look(count) is None) == (_top_1(count, count, most).standing == "kept")
    few = look(2)
    assert few is not None
    assert look(few.enough) is None


def test_samples_that_no_number_makes_enough_are_told_as_such() -> None:
    none_would = find_sample_shortage(Metric("top-5"), MetricRule(0.0), [torch.zeros(5000)])
    assert none_would == SampleShortage(5000, 0)


def test_of_an_area_it_is_the_rarer_label_that_counts() -> None:
    rare = torch.arange(1000) % 100 == 0
    few = find_sample_shortage(Metric("auc"), MetricRule(0.01), rare.long().split(300))
    assert few == SampleShortage(10, 30)
    assert (
        find_sample_shortage(Metric("auc"), MetricRule(0.01), [(torch.arange(100) % 3 == 0)])
        is None
    )
    assert find_sample_shortage(
        Metric("rmse"), MetricRule(0.01), [torch.zeros(29, 1)]
    ) == SampleShortage(29, 30)


def test_where_the_drop_is_what_is_agreed_no_number_is_promised() -> None:
    lost = _top_1(297, 300, 0.005)
    assert lost.standing == "not known"
    assert lost.enough == 0
    assert "would not help" in lost.text


def test_of_numbers_a_few_say_nothing_and_more_do() -> None:
    def measure(count: int) -> MeasuredMetric:
        labels = torch.randn(count, 1, generator=_random(1))
        eager = labels + 0.1 * torch.randn(count, 1, generator=_random(2))
        package = eager + 0.005 * torch.randn(count, 1, generator=_random(3))
        return measure_metric(
            Metric("rmse"), "", MetricRule(0.01), "sha256:0", [(eager, package, labels)]
        )

    assert measure(20).standing == "not known"
    assert measure(20).enough >= 30
    assert measure(4000).standing == "kept"
    assert "of eager's" in measure(4000).text


def test_pairs_come_in_batches_of_any_size() -> None:
    whole = _top_1(990, 1000, 0.02)
    labels = torch.zeros(1000, dtype=torch.long)
    given = zip(
        _answers(1000, 1000).split(300), _answers(990, 1000).split(300), labels.split(300),
        strict=True,
    )  # fmt: skip
    parts = measure_metric(Metric("top-1"), "logits", MetricRule(0.02), "sha256:0", given)
    assert parts == whole


@pytest.mark.parametrize("name", ["rmse", "mae", "log-loss", "auc", "top-1", "cosine"])
def test_a_package_of_no_numbers_breaks_every_metric(name: str) -> None:
    labels = torch.arange(400) % 2
    eager = torch.stack([1.0 - 2.0 * labels, 2.0 * labels - 1.0], 1)
    wanted = eager * 0.9 if name in ("rmse", "mae") else labels
    pair: Pair = (eager, torch.full_like(eager, math.nan), wanted)
    found = measure_metric(Metric(name), "", MetricRule(0.05), "sha256:0", [pair])
    assert found.standing == "broken"


@pytest.mark.parametrize(
    ("name", "labels", "match"),
    [
        ("top-1", None, "expected labels"),
        ("auc", None, "labels of 0 and 1"),
        ("auc", torch.ones(40), "both kinds"),
    ],
)
def test_a_metric_without_its_labels_is_told(
    name: str, labels: torch.Tensor | None, match: str
) -> None:
    pair: Pair = (_answers(30, 40), _answers(30, 40), labels)
    with pytest.raises(NotComputable, match=match):
        measure_metric(Metric(name), "", None, "sha256:0", [pair])
    with pytest.raises(NotComputable):
        measure_metric(Metric(name), "", None, "sha256:0", [])


@pytest.mark.parametrize(
    "name", ["top-0", "top-", "top-K", "TOP-1", "ndcg@", "", "f1", "own:", "own:A", "top-1\n"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a metric among top-K, auc"):
        Metric(name)
