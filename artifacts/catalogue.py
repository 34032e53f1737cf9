"""What MLflow shows of a release: tags, parameters, metrics, named alike for every version."""

from __future__ import annotations

from artifacts.manifest import Manifest

TAG = "handoff."


def version_tags(manifest: Manifest) -> dict[str, str]:
    """Return the tags of a release's run, model and version: what people search by."""
    plain = {
        "manifest": str(manifest.digest),
        "delivery": str(manifest.delivery),
        "fingerprint": str(manifest.fingerprint),
        "verdict": manifest.verdict,
        "targets": " ".join(target.slug for target in manifest.targets),
        "created": manifest.created,
        "commit": manifest.lineage.commit,
        "repository": manifest.lineage.repository,
        "training_run": manifest.lineage.training_run,
    }
    return {f"{TAG}{key}": value for key, value in plain.items() if value}


def run_parameters(manifest: Manifest) -> dict[str, str]:
    """Return what a release was made with."""
    passes = ", ".join(effect.name for effect in manifest.passes) or "none"
    options = ", ".join(f"{k}={v}" for k, v in manifest.recipe.options.items()) or "none"
    targets = ", ".join(target.slug for target in manifest.targets)
    return {"passes": passes, "options": options, "targets": targets, **manifest.toolchain}


def run_metrics(manifest: Manifest) -> dict[str, float]:
    """Return each target's figures as `<slug>/<figure>`, in seconds, bytes and plain ratios."""
    metrics = {}
    for target in manifest.targets:
        numbers = {
            "compile_s": target.compile_s,
            "size_bytes": float(target.size_bytes),
            "max_abs": target.max_abs,
            "speedup": target.speedup,
            "rmse_ratio": target.rmse_ratio,
        }
        for name, number in numbers.items():
            if number is not None:
                metrics[f"{target.slug}/{name}"] = number
    return metrics
