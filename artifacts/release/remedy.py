"""What to do about a refused release, by what it was refused for."""

from __future__ import annotations

from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.recipe.tolerance import DEFAULT_TOLERANCES
from handoff.artifacts.release.manifest import Manifest, TargetRecord


def next_step(manifest: Manifest) -> str:
    """Return what helps against what the first refused target was refused for; '' for none."""
    if manifest.verdict == "unsound":
        return "Do what the findings say, and deliver the model again"
    refused = [target for target in manifest.targets if target.verdict == "refused"]
    if not refused:
        return ""
    # Where one is wrong, another's crash is not what to look at first.
    target = min(refused, key=lambda one: one.crashed)
    return _CRASHED if target.crashed else _target_step(manifest, target)


_CRASHED = (
    "Nothing was shown to be wrong: do what the reason says, then release it again; if it crashes "
    "again, look at the step's log in the build's folder"
)


def _metric_step(metric: MeasuredMetric) -> str:
    if metric.standing == "not agreed":
        return "Agree on a max_drop under [metric] in the recipe"
    if metric.standing == "not known" and metric.enough:
        return "Deliver an evaluation of as many samples as the reason asks for"
    return (
        "Keep more layers as they are (int8-keep-10, -25, -50), calibrate with more of what is "
        "served, or agree on another max_drop in the recipe"
    )


def _mechanical_step(manifest: Manifest, target: TargetRecord) -> str:
    """Return what helps where the numbers are right in Python, and not what follows."""
    mechanics, agreed = target.mechanics, manifest.recipe.tolerance
    narrow = [
        dtype
        for dtype, usual in DEFAULT_TOLERANCES.items()
        if dtype in agreed and agreed[dtype].rtol < usual.rtol
    ]
    if narrow and mechanics and any(replay.beyond_tolerance for replay in mechanics.replays):
        return (
            "A package may round otherwise from call to call, by how its inputs lie in memory and "
            f"by its threads, for which the recipe leaves less room than is usual: leave "
            f"[tolerance.{narrow[0]}] out, or agree on a wider one"
        )
    return "Its numbers were not refused: change what the reason names, and release it again"


_UNKNOWN = (
    "What makes it wrong wasn't found: release it with fewer passes and options, or give the "
    "search for it longer (localize_seconds under [verify] in the recipe)"
)


def _target_step(manifest: Manifest, target: TargetRecord) -> str:
    metric = target.metric
    if metric is not None and metric.decides and metric.standing != "kept":
        return _metric_step(metric)
    wrong = [deviation for deviation in target.deviations if not deviation.accepted]
    if not wrong:
        return _mechanical_step(manifest, target)
    remedy = (target.culprit and target.culprit.remedy) or _UNKNOWN
    if target.is_wrong_on_special_inputs_alone:
        return (
            f"{remedy}. It is right on ordinary inputs, and wrong on some that were made to be "
            "difficult: if those are never served, declare narrower ranges in the delivery"
        )
    return remedy
