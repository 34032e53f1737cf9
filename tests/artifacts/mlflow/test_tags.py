"""What MLflow shows of a release says what it claims to say."""

from __future__ import annotations

from dataclasses import replace

from handoff.artifacts.mlflow.tags import run_metrics
from tests.artifacts.samples import sample_manifest


def test_the_time_of_a_compiler_is_shown_where_one_compiled() -> None:
    manifest = sample_manifest()
    slug = manifest.targets[0].slug
    assert run_metrics(manifest)[f"{slug}/compile_s"] == manifest.targets[0].compile_s
    found = replace(manifest.targets[0], compile_s=0.006, reused="package")
    shown = run_metrics(replace(manifest, targets=(found, *manifest.targets[1:])))
    assert f"{slug}/compile_s" not in shown
    assert f"{slug}/speedup" in shown
