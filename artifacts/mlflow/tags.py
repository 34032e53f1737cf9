"""What MLflow shows of a release: tags, parameters, metrics, named alike for every version."""

from __future__ import annotations

import math
from collections.abc import Iterator

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.mechanics import Mechanics
from handoff.artifacts.release.statement import Claim

TAG = "handoff."
VERSION_TAG = f"{TAG}version"
RELEASE_TAG = f"{TAG}release"
MANIFEST_TAG = f"{TAG}manifest"
REPORT_TAG = f"{TAG}report"
# MLflow's list of versions shows a version's tags below one another, each cut to some twenty
# characters: what people decide by, and what makes the version known again. The run has all.
_OF_VERSIONS = ("targets", "blessing.numeric", "blessing.mechanical", "commit", "version",
                "release", "manifest")  # fmt: skip
# MLflow refuses longer ones (6000 characters), and nobody reads them.
_PARAMETER_LIMIT = 500
# MLflow takes a hundred parameters at once.
_CONTRACT_ROWS = 60


def version_tags(manifest: Manifest, claim: Claim, release: Digest) -> dict[str, str]:
    """Return the tags of a release's version: those that people search versions by."""
    tags = run_tags(manifest, claim, release)
    names = (f"{TAG}{name}" for name in _OF_VERSIONS)
    return {name: tags[name] for name in names if name in tags}


def run_tags(manifest: Manifest, claim: Claim, release: Digest) -> dict[str, str]:
    """Return the tags of a release's run and logged model: what people search by.

    `release` is the digest of the signed statement.
    """
    plain = {
        "version": str(claim.version),
        "verdict": manifest.verdict,
        "blessing.numeric": numeric_blessing(manifest),
        "blessing.mechanical": mechanical_blessing(manifest),
        "targets": " ".join(target.slug for target in manifest.targets),
        "created": manifest.created,
        "release": str(release),
        "manifest": str(claim.manifest),
        "delivery": str(manifest.delivery),
        "fingerprint": str(manifest.fingerprint),
        "commit": manifest.lineage.commit,
        "repository": manifest.lineage.repository,
        "training_run": manifest.lineage.training_run,
        "source_checked": " ".join(
            target.slug for target in manifest.targets if target.source_checked
        ),
        # Of these the metrics tell what was measured of another package.
        "taken_over": " ".join(target.slug for target in manifest.targets if target.taken_over),
    }
    return {f"{TAG}{key}": one_line(value)[:5000] for key, value in plain.items() if value}


def numeric_blessing(manifest: Manifest) -> str:
    """Return what the comparison of numbers decided, over all targets."""
    verdicts = [target.standing for target in manifest.targets]
    return "refused" if "refused" in verdicts else ", ".join(dict.fromkeys(verdicts))


def mechanical_blessing(manifest: Manifest) -> str:
    """Return on how many targets a program without Python has tried the package."""
    tried = [target.slug for target in manifest.targets if target.mechanics]
    if len(tried) == len(manifest.targets):
        return "accepted"
    return f"accepted for {' '.join(tried)}" if tried else "not tried"


def run_parameters(manifest: Manifest) -> dict[str, str]:
    """Return what a release was made with and takes: recipe, toolchain and contract."""
    recipe = manifest.recipe
    tolerances = (
        f"{name}: atol {agreed.atol:g}, rtol {agreed.rtol:g}"
        for name, agreed in recipe.tolerance.items()
    )
    named = {
        "targets": ", ".join(target.slug for target in manifest.targets),
        "passes": ", ".join(effect.name for effect in manifest.passes) or "none",
        "options": ", ".join(f"{k}={v}" for k, v in recipe.options.items()) or "none",
        "tolerances": "; ".join(tolerances) or "the usual ones",
        **manifest.toolchain,
        **contract_parameters(manifest.signature),
    }
    return {key: one_line(value)[:_PARAMETER_LIMIT] for key, value in named.items()}


def contract_parameters(signature: ModelSignature) -> dict[str, str]:
    """Return what a release takes, by input and dimension, to be compared row by row."""
    told = {
        f"input {spec.name}": f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"
        + (f", {spec.values}" if spec.values else "")
        for spec in signature.inputs
    }
    told |= {
        f"size {name}": f"{limits.min} to {limits.max}"
        for name, limits in signature.dimensions.items()
    }
    rows = list(told.items())
    rest = rows[_CONTRACT_ROWS:]
    more = {"further inputs": "; ".join(f"{name}: {what}" for name, what in rest)} if rest else {}
    return {**dict(rows[:_CONTRACT_ROWS]), **more}


def run_metrics(manifest: Manifest) -> dict[str, float]:
    """Return each target's figures as `<slug>/<figure>`, in seconds, bytes and plain ratios."""
    return {
        f"{target.slug}/{name}": number
        for target in manifest.targets
        for name, number in (*_figures(target), *_mechanical_figures(target.mechanics))
        if number is not None and math.isfinite(number)
    }


def _figures(target: TargetRecord) -> Iterator[tuple[str, float | None]]:
    # Seconds in which a package was found in a cache say nothing of a compiler.
    yield "compile_s", target.compile_s if not target.reused else None
    yield "size_bytes", float(target.size_bytes)
    yield "max_abs", target.max_abs
    yield "rmse_ratio", target.rmse_ratio
    if target.metric:
        name = target.metric.shown_name
        yield name, target.metric.package
        yield f"{name} by eager", target.metric.eager
        yield f"{name} lost", target.metric.drop
        yield f"{name} lost at most", target.metric.high
    if timing := target.headline:
        yield "speedup", timing.speedup
        yield "speedup_low", timing.speedup_low
        yield "speedup_high", timing.speedup_high
        yield "eager_s", timing.eager_s
        yield "package_s", timing.package_s


def _mechanical_figures(found: Mechanics | None) -> Iterator[tuple[str, float | None]]:
    if found is None:
        return
    for opening in found.openings[:1]:
        yield "open_s", opening.open_s
        yield "first_call_s", opening.first_call_s
        yield "opened_bytes", float(opening.opened_bytes)
    for rate in found.rates:
        yield f"calls_per_s_{rate.threads}_threads", rate.calls_per_s
