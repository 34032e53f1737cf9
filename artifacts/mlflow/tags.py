"""What MLflow shows of a release: tags, parameters, metrics, named alike for every version."""

from __future__ import annotations

import math
from collections.abc import Iterator

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.interval import ratio
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.mechanics import Mechanics
from handoff.artifacts.release.statement import Claim

TAG = "handoff."
VERSION_TAG = f"{TAG}version"
RELEASE_TAG = f"{TAG}release"
MANIFEST_TAG = f"{TAG}manifest"
REPORT_TAG = f"{TAG}report"
# What happened to a run's release: `released`, `refused` or `crashed`.
OUTCOME_TAG = f"{TAG}outcome"
# What takes the place of a version's verdict once it was retired.
RETIRED = "retired"
# MLflow shows no tags of a run whose names begin so: what programs find it by.
HIDDEN = "mlflow.handoff."
# A longer name is cut in MLflow's list of runs.
_COMMIT_SHOWN = 8
# MLflow refuses longer ones (6000 characters), and nobody reads them.
_PARAMETER_LIMIT = 500
# MLflow takes a hundred parameters at once.
_CONTRACT_ROWS = 60


def version_tags(manifest: Manifest, claim: Claim, release: Digest, report: str) -> dict[str, str]:
    """Return the tags of a release's version, whose report lies at `report`.

    MLflow's list of versions shows them below one another, each cut to some twenty characters, name
    and all: so these are what people decide by, first things first. The run has all.
    """
    shown = {
        "verdict": verdict(manifest),
        "speed": speed(manifest),
        "commit": one_line(manifest.lineage.short_commit(_COMMIT_SHOWN)),
        "targets": " ".join(target.slug for target in manifest.targets),
        VERSION_TAG: str(claim.version),
    }
    # What programs know it by: last, since MLflow cuts a digest, and hides no tag of a version.
    identifiers = {
        RELEASE_TAG: str(release), MANIFEST_TAG: str(claim.manifest), REPORT_TAG: report,
    }  # fmt: skip
    return {name: value for name, value in {**shown, **identifiers}.items() if value}


def verdict(manifest: Manifest) -> str:
    """Return what was decided on a release, in a word or two."""
    numbers, mechanics = numeric_blessing(manifest), mechanical_blessing(manifest)
    if numbers != "accepted" or mechanics == "accepted":
        return numbers
    return "accepted, its numbers alone"


def speed(manifest: Manifest) -> str:
    """Return how many times as fast as eager the packages are; '' where nothing was timed."""
    timed = [target.headline.over_eager for target in manifest.targets if target.headline]
    if not timed:
        return ""
    if not all(one.is_known for one in timed):
        return "not known"
    values = sorted(one.value for one in timed)
    least, most = ratio(values[0]), ratio(values[-1])
    return f"{least}×" if least == most else f"{least} to {most}×"


def run_tags(manifest: Manifest, claim: Claim, release: Digest) -> dict[str, str]:
    """Return the tags of a release's run and logged model: what people search by.

    `release` is the digest of the signed statement.
    """
    plain = {
        "outcome": "released",
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
        "source_checked": " ".join(
            target.slug for target in manifest.targets if target.source_checked
        ),
        # On which compute capabilities nothing has run the machine code that there is for them.
        "unverified_gpus": " ".join(
            f"{target.slug}:{one / 10:.1f}"
            for target in manifest.targets
            for one in target.unverified_gpus
        ),
        # With which other versions of torch a package was seen to be right.
        "torches": " ".join(
            f"{target.slug}:{version}"
            for target in manifest.targets
            for version in (target.fit.also if target.fit else ())
        ),
        # Of these the metrics are what was measured of another package.
        "taken_over": " ".join(target.slug for target in manifest.targets if target.taken_over),
    }
    return {**_prefix_tags(plain), **source_tags(manifest.lineage)}


def source_tags(lineage: Lineage) -> dict[str, str]:
    """Return the tags of where a delivery comes from, as far as it was said."""
    return _prefix_tags(
        {
            "commit": lineage.commit,
            "repository": lineage.repository,
            "training_run": lineage.training_run,
        }
    )


def run_title(name: str, lineage: Lineage) -> str:
    """Return what a run is called: the model, or its version, and the commit."""
    return " ".join(filter(None, (name, one_line(lineage.short_commit(_COMMIT_SHOWN)))))


def _prefix_tags(plain: dict[str, str]) -> dict[str, str]:
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
        f"{name}: atol {tolerance.atol:g}, rtol {tolerance.rtol:g}"
        for name, tolerance in recipe.tolerance.items()
    )
    parameters = {
        "targets": ", ".join(target.slug for target in manifest.targets),
        "passes": ", ".join(effect.name for effect in manifest.passes) or "none",
        "options": ", ".join(f"{k}={v}" for k, v in recipe.options.items()) or "none",
        "tolerances": "; ".join(tolerances) or "the usual ones",
        **manifest.toolchain,
        **contract_parameters(manifest.signature),
    }
    return {key: one_line(value)[:_PARAMETER_LIMIT] for key, value in parameters.items()}


def contract_parameters(signature: ModelSignature) -> dict[str, str]:
    """Return what a release takes, by input and dimension, to be compared row by row."""
    parameters = {
        f"input {spec.name}": f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"
        + (f", {spec.values}" if spec.values else "")
        for spec in signature.inputs
    }
    parameters |= {f"size {name}": str(limits) for name, limits in signature.dimensions.items()}
    rows = list(parameters.items())
    rest = rows[_CONTRACT_ROWS:]
    more = {"further inputs": "; ".join(f"{name}: {what}" for name, what in rest)} if rest else {}
    return {**dict(rows[:_CONTRACT_ROWS]), **more}


def run_metrics(manifest: Manifest) -> dict[str, float]:
    """Return each target's figures as `<slug>/<figure>`, in seconds, bytes and plain ratios.

    MLflow takes no `+` in a metric's name: for `cuda-sm80+sm90` they are `cuda-sm80_sm90/<figure>`.
    """
    return {
        f"{target.slug.replace('+', '_')}/{name}": number
        for target in manifest.targets
        for name, number in (*_target_metrics(target), *_mechanics_metrics(target.mechanics))
        if number is not None and math.isfinite(number)
    }


def _target_metrics(target: TargetRecord) -> Iterator[tuple[str, float | None]]:
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
        # A figure that can't be acted on would be sorted and drawn like any other.
        yield "speedup", timing.speedup if timing.over_eager.is_known else None
        yield "speedup_low", timing.speedup_low
        yield "speedup_high", timing.speedup_high
        yield "eager_s", timing.eager_s
        yield "package_s", timing.package_s


def _mechanics_metrics(mechanics: Mechanics | None) -> Iterator[tuple[str, float | None]]:
    if mechanics is None:
        return
    for opening in mechanics.openings[:1]:
        yield "open_s", opening.open_s
        yield "first_call_s", opening.first_call_s
        yield "opened_bytes", float(opening.opened_bytes)
    for rate in mechanics.rates:
        yield f"calls_per_s_{rate.threads}_threads", rate.calls_per_s
