"""What a release's page answers first: was it released, how fast, how wrong, and on which inputs.

Of a refusal: why, by what, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from handoff.artifacts.release.coverage import (
    beyond_compared,
    closest_call,
    describe_compared_inputs,
)
from handoff.artifacts.release.evidence import EXAMPLE
from handoff.artifacts.release.interval import ratio
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.remedy import next_step
from handoff.tasks.report.cells import Cell, Table, Tone, format_count, table


@dataclass(frozen=True)
class RefusalReason:
    """Why a target is refused: the first reason, what to do, what it names, and further reasons.

    `more` is how many of these are left out. What to do stands with one target of a release.
    """

    target: str
    first: str
    remedy: str
    culprit: Table | None
    further: tuple[str, ...]
    more: int


@dataclass(frozen=True)
class Figure:
    """A figure of the first screen: its name, itself, and what it has to be read with."""

    name: str
    figure: str
    note: str
    tone: Tone = ""


@dataclass(frozen=True)
class Verdict:
    """What was decided: in one word, one sentence, and figures; `reasons` first if refused.

    `remedy` is what to do where no target is refused, but the delivery.
    """

    word: str
    tone: Tone
    sentence: str
    remedy: str
    figures: tuple[Figure, ...]
    reasons: tuple[RefusalReason, ...]


REASONS_SHOWN = 12


def is_refused(manifest: Manifest) -> bool:
    """Return whether nothing was released: a target is refused, or the delivery is unsound."""
    return manifest.verdict == "unsound" or any(t.verdict == "refused" for t in manifest.targets)


def judge(manifest: Manifest) -> Verdict:
    """Return the verdict on a release: refused where any target is, or the delivery is unsound."""
    # In the order of `next_step`, which is about the first of them.
    refused = sorted(
        (target for target in manifest.targets if target.verdict == "refused"),
        key=lambda target: target.crashed,
    )
    unverified = [target for target in manifest.targets if target.unverified]
    names = ", ".join(target.slug for target in manifest.targets)
    if is_refused(manifest):
        refused_slugs = ", ".join(target.slug for target in refused)
        why = (
            f"the package for {refused_slugs} was refused"
            if refused_slugs
            else "the delivery is unsound"
        )
        word, sentence = "Refused", f"Nothing was released: {why}."
        tone: Tone = "bad"
    elif unverified:
        word, tone = "Built, not yet verified", "warn"
        sentence = (
            f"Built for {names}; " + ", ".join(t.slug for t in unverified) + " was run nowhere."
        )
        if checked := ", ".join(t.slug for t in unverified if t.is_checked_at_source):
            sentence += f" The sources of the kernels for {checked} were run without a GPU."
    else:
        word, tone = "Accepted", "good"
        all_probed = all(target.mechanics for target in manifest.targets)
        accepted_parts = (
            "Its numbers and its behaviour without Python" if all_probed else "Its numbers"
        )
        emulated = ", ".join(t.slug for t in manifest.targets if t.emulated)
        sentence = f"{accepted_parts} are accepted; released for {names}."
        if emulated:
            sentence += f" {emulated} was verified under emulation, and its speed not measured."
        for target in manifest.targets:
            if untried := target.unverified_gpus_text:
                sentence += f" {target.slug} is {untried}."
    remedy = next_step(manifest)
    reasons = [
        _refusal_reason(target, "" if index else remedy) for index, target in enumerate(refused)
    ]
    return Verdict(
        word, tone, sentence, "" if refused else remedy, tuple(_figures(manifest)), tuple(reasons)
    )


def _refusal_reason(target: TargetRecord, remedy: str) -> RefusalReason:
    first, *further = target.reason_lines or ("Its record holds no reason.",)
    if target.culprit and target.culprit.script:
        # The table below has it, where a long path doesn't part the words from what to do.
        first = first.replace(f" The script {target.culprit.script} reproduces it.", "")
    more = max(0, len(further) - REASONS_SHOWN)
    return RefusalReason(
        target.slug, first, remedy, _culprit_table(target), tuple(further[:REASONS_SHOWN]), more
    )


def _culprit_table(target: TargetRecord) -> Table | None:
    """Return what the search for the cause could name, a row each."""
    culprit = target.culprit
    if culprit is None:
        return None
    right_without = filter(None, (*culprit.options, culprit.made_by, culprit.part))
    rows = (
        ("operator", culprit.operator), ("line", culprit.where),
        ("right without", ", ".join(right_without)),
        ("reproduce it", culprit.script),
    )  # fmt: skip
    return table("What was found", (), [(name, Cell(text, "code")) for name, text in rows if text])


def origin(manifest: Manifest) -> str:
    """Return which release this is, in a line: its record, the commit that it is of, and when."""
    commit = manifest.lineage.short_commit(40)
    made_from = f"commit {commit}" if commit else "of a delivery that names no commit"
    created = format_time(manifest.created)
    decision = "refused" if is_refused(manifest) else "released"
    return f"{made_from} · {decision} {created} · record {manifest.digest.short}"


def format_time(stamp: str) -> str:
    """Return a moment as people read it: `2026-11-27 00:22:07 UTC`."""
    return stamp.replace("T", " ").replace("+00:00", " UTC")


def _figures(manifest: Manifest) -> Iterable[Figure]:
    """Give what is looked for first: how fast, how wrong, and on which inputs."""
    yield from _speed_figure(manifest)
    yield from _error_figure(manifest)
    ratios = [t.rmse_ratio for t in manifest.targets if t.rmse_ratio is not None]
    if ratios:
        allowed = f"at most {manifest.recipe.tolerance_for('float32').rmse_factor:g}× is agreed"
        note = f"eager's own, on ordinary inputs; {allowed}"
        yield Figure("RMSE to float64", f"{ratio(max(ratios))}×", note)
    yield from _inputs_figure(manifest)
    yield from _metric_figure(manifest)
    incomparable = [
        (share, output) for t in manifest.targets for output, share in t.undecided_shares
    ]
    if incomparable:
        share, output = max(incomparable)
        note = f"of {_output_name(manifest, output)}: rounding decides"
        yield Figure("not comparable", f"{share:.2%}", note, "warn")
    if len(manifest.targets) > 1:
        accepted = sum(target.accepted for target in manifest.targets)
        yield Figure("targets", f"{accepted} of {len(manifest.targets)}", "accepted")
    count = len(manifest.findings)
    yield Figure("delivery", manifest.verdict, format_count(count, "finding"))


def _error_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the largest error of all targets, with how much of the agreed tolerance it takes."""
    compared = [target for target in manifest.targets if target.max_abs is not None]
    if not compared:
        return
    worst = max(compared, key=lambda target: target.max_abs or 0.0)
    call = closest_call(manifest, worst)
    note = "from eager, on ordinary inputs"
    note = f"{note}; {call.text}" if call else note
    is_half = any(target.is_wrong_on_special_inputs_alone for target in compared)
    note += "; wrong on special ones" * is_half
    yield Figure("largest error", f"{worst.max_abs:.1e}", note, "warn" if is_half else "")


def _speed_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the fastest target's speed as it was delivered, and at its smallest and largest size."""
    timed = [target for target in manifest.targets if target.timings]
    if not timed:
        return
    fastest = max(timed, key=lambda target: target.speedup or 0.0)
    best = fastest.headline
    assert best is not None  # what was timed has one
    interval = best.over_eager
    figure = f"{ratio(interval.value)}×" if interval.is_known else "not known"
    ends = [
        f"{f'{ratio(timing.speedup)}×' if timing.over_eager.is_known else 'not known'} at "
        + describe_case(timing.case)
        for timing in dict.fromkeys((fastest.timings[0], fastest.timings[-1]))
        if timing is not best
    ]
    at_case = f"eager's speed at {describe_case(best.case)}"
    note = (
        f"{at_case} ({interval.span})" if interval.is_known else f"{interval.span} times {at_case}"
    )
    measured = ["measured on the same code with other weights"] if fastest.taken_over else []
    yield Figure("speed", figure, "; ".join([note, *ends, *measured]))


def describe_case(case: str) -> str:
    """Return a case's name as people say it: the delivery's first example is *as delivered*."""
    if case.endswith(EXAMPLE):
        return f"{case.removesuffix(EXAMPLE).strip()}, as delivered"
    return case.removesuffix("seed=0").strip()


def _inputs_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the inputs on which packages were compared with eager, and the sizes that are not."""
    # Where targets were compared on other inputs, the one that was on the fewest stands for all.
    compared = [target for target in manifest.targets if target.deviations]
    if not compared:
        return
    target = min(compared, key=lambda one: len(one.deviations))
    cases = {one.case for one in target.deviations if one.output >= 0}
    notes = [*describe_compared_inputs(manifest.signature, target)]
    notes += [f"left out, as its section says: {len(target.skipped)}"] if target.skipped else []
    yield Figure("inputs compared", str(len(cases)), "; ".join(notes))
    if beyond := beyond_compared(manifest.signature, target):
        limits = manifest.signature.dimensions
        declared = ", ".join(f"{name} to {one.max}" for name, one in limits.items())
        why = "; too much memory or time for the plan" if target.skipped else ""
        yield Figure("not compared", beyond, f"declared: {declared}{why}", "warn")


def _metric_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the metric of the package that loses most of it."""
    found = [target.metric for target in manifest.targets if target.metric]
    if found:
        worst = max(found, key=lambda one: one.drop)
        yield Figure(worst.name, f"{worst.package:.4g}", f"{worst.eager:.4g} by eager")


def _output_name(manifest: Manifest, index: int) -> str:
    outputs = manifest.signature.outputs
    return outputs[index].name if index < len(outputs) else f"output {index}"
