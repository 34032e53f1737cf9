"""What MLflow shows of a release says what it claims to say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.mlflow.tags import numeric_blessing, run_metrics
from tests.artifacts.samples import (
    sample_manifest,
    sample_metric,
    sample_source_check,
    sample_target,
)


def test_the_time_of_a_compiler_is_shown_where_one_compiled() -> None:
    manifest = sample_manifest()
    slug = manifest.targets[0].slug
    assert run_metrics(manifest)[f"{slug}/compile_s"] == manifest.targets[0].compile_s
    found = replace(manifest.targets[0], compile_s=0.006, reused="package")
    shown = run_metrics(replace(manifest, targets=(found, *manifest.targets[1:])))
    assert f"{slug}/compile_s" not in shown
    assert f"{slug}/speedup" in shown


def test_a_speed_that_is_not_known_is_no_metric_and_its_bounds_are() -> None:
    (target,) = sample_manifest(sample_target("cpu-avx2")).targets
    wide = tuple(replace(one, speedup_low=0.4, speedup_high=3.0) for one in target.timings)
    metrics = run_metrics(sample_manifest(replace(target, timings=wide)))
    assert f"{target.slug}/speedup" not in metrics
    assert metrics[f"{target.slug}/speedup_high"] == 3.0


@pytest.mark.parametrize(
    ("name", "shown"), [("top-1", "top-1"), ("ndcg@5", "ndcg at 5"), ("own:recall", "own recall")]
)
def test_an_agreed_metric_is_shown_under_a_name_that_mlflow_takes(name: str, shown: str) -> None:
    manifest = sample_manifest()
    target = replace(manifest.targets[0], metric=sample_metric(0.965, name=name))
    metrics = run_metrics(replace(manifest, targets=(target,)))
    assert metrics[f"{target.slug}/{shown}"] == 0.965
    assert metrics[f"{target.slug}/{shown} by eager"] == 0.97
    assert metrics[f"{target.slug}/{shown} lost at most"] == pytest.approx(0.01)
    # Where the metric decides, no error to float64 is given in multiples of eager's.
    assert f"{target.slug}/rmse_ratio" not in metrics
    from mlflow.utils.validation import _validate_metric_name

    for one in metrics:
        _validate_metric_name(one)  # type: ignore[no-untyped-call]


def test_kernels_that_were_run_at_the_source_are_no_verified_package() -> None:
    manifest = sample_manifest()
    waiting = replace(manifest.targets[0], accepted=False, unverified="no GPU here")
    checked = replace(waiting, source_checked=sample_source_check())
    shown = [numeric_blessing(replace(manifest, targets=(one,))) for one in (waiting, checked)]
    assert shown[0] == "built, not yet verified"
    assert shown[1] == "built, not yet verified, kernels checked at source level"
