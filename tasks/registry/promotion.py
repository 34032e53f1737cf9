"""The rules of a promotion: both gates passed, and not worse than what is replaced.

Where both packages run on the promoting machine, speed and error are measured there, side by side.
Else they are compared by what both were measured beside: the speed-up over eager with its 95 %
interval, of as many threads, and the RMSE to float64 in multiples of eager's. Times of two
releases, measured on different days, are never compared with each other.

Of a package about which the delivery's metric decides, an error says nothing: the metric is
compared instead, where both were measured on the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from handoff.artifacts.recipe.gpu_generations import format_capabilities
from handoff.artifacts.recipe.recipe import Promotion
from handoff.artifacts.release.comparison import SideBySide, Standing
from handoff.artifacts.release.manifest import Manifest, TargetRecord


def broken_rules(
    candidate: Manifest, replaced: Manifest | None, measured: tuple[SideBySide, ...] = ()
) -> tuple[str, ...]:
    """Return a sentence for each rule that `candidate` breaks, by its own recipe.

    `replaced` is what the alias points to now, None where it stands for nothing. `measured` are
    the targets that were measured beside what they replace, each on one input or on several.
    """
    rules = candidate.recipe.promotion
    broken = [text for target in candidate.targets for text in _acceptance_problems(target, rules)]
    if replaced is not None:
        after = {target.slug: target for target in candidate.targets}
        for before in replaced.targets:
            if not before.accepted:
                continue
            if before.slug not in after:
                broken.append(f"{before.slug}: served now, and not part of this release")
                continue
            comparisons = [one for one in measured if one.target == before.slug]
            broken += _regressions(after[before.slug], before, rules, comparisons)
    return tuple(broken)


def judge(
    after: TargetRecord,
    before: TargetRecord,
    rules: Promotion,
    measured: Sequence[SideBySide] = (),
) -> tuple[Standing, tuple[str, ...]]:
    """Return how one target stands beside what it would replace, and by what.

    It is better where what it would replace breaks a rule beside it: what lies within the rules in
    both directions is equal.
    """
    broken = tuple(_acceptance_problems(after, rules))
    if not before.accepted:
        gained: tuple[str, ...] = (f"{before.slug}: what it replaces is {before.verdict}",)
        return ("worse", broken) if broken else ("better", gained)
    broken = (*broken, *_regressions(after, before, rules, measured))
    if broken:
        return "worse", broken
    gained = (
        *_metric_gains(after, before),
        *(f"faster: {one}" for one in measured if one.low > rules.slowdown),
        *(() if measured else _speedups(after, before, rules)),
        *_accuracy_gains(after, before, rules, measured),
    )
    return ("better", gained) if gained else ("equal", ())


def describe_hardware_not_run(manifest: Manifest) -> tuple[str, ...]:
    """Return a sentence for each target that machines of its kind have not run, or not all."""
    emulated = (
        f"{target.slug}: verified under emulation: {target.emulated}"
        for target in manifest.targets
        if target.emulated
    )
    untried = (
        f"{target.slug}: {target.unverified_gpus_text}"
        for target in manifest.targets
        if target.unverified_gpus_text
    )
    return (*emulated, *untried)


def _acceptance_problems(target: TargetRecord, rules: Promotion) -> Iterator[str]:
    if not target.accepted:
        yield f"{target.slug}: {target.verdict}"
        return
    if not target.deviations:
        yield f"{target.slug}: its numbers were not verified"
    if target.mechanics is None:
        yield f"{target.slug}: not tried without Python"
    if target.emulated:
        if not rules.emulated:
            yield f"{target.slug}: verified under emulation alone, which the recipe doesn't allow"
    elif not target.timings:
        yield f"{target.slug}: its speed was not measured"


def _regressions(
    after: TargetRecord, before: TargetRecord, rules: Promotion, measured: Sequence[SideBySide]
) -> Iterator[str]:
    if lost := sorted(_verified_gpus(before) - _verified_gpus(after)):
        yield (
            f"{after.slug}: verified for compute capability {format_capabilities(lost)} now, and "
            "not in this release"
        )
    if measured:
        yield from (f"slower: {one}" for one in measured if one.high * rules.slowdown < 1.0)
    else:
        yield from _slowdowns(after, before, rules)
    yield from _metric_losses(after, before)
    if after.decided_by_metric is not None:
        return
    new, old = _errors(after, before, measured)
    if new is not None and old is not None and new > max(old, 1.0) * rules.error_growth:
        yield (f"{after.slug}: less accurate: an error {new:.2f} times eager's; before, {old:.2f}")


def _verified_gpus(target: TargetRecord) -> set[int]:
    """Return the capabilities whose machine code a GPU has run: it is pulled for no others."""
    return set(target.fit.gpu_capabilities) if target.fit else set()


def _metric_losses(after: TargetRecord, before: TargetRecord) -> Iterator[str]:
    """Give a metric that is worse than what it replaces has, by more than may be lost."""
    new, old = after.metric, before.metric
    if new and old and new.is_beaten_by(old):
        yield (
            f"{after.slug}: {new.name} is {new.package:.4g}, where it was {old.package:.4g} on the "
            f"same samples: more than {new.agreed} lost"
        )


def _metric_gains(after: TargetRecord, before: TargetRecord) -> Iterator[str]:
    new, old = after.metric, before.metric
    if new and old and old.is_beaten_by(new):
        yield f"{after.slug}: {new.name} is {new.package:.4g}, where it was {old.package:.4g}"


def _slowdowns(after: TargetRecord, before: TargetRecord, rules: Promotion) -> Iterator[str]:
    known = {timing.case: timing for timing in before.timings}
    for timing in after.timings:
        old = known.get(timing.case)
        if old is not None and timing.threads != old.threads:
            yield (
                f"{after.slug}: its speed can't be compared: measured with {timing.threads} "
                f"threads, where it was {old.threads}; promote it on a machine that runs both"
            )
            return
        if old is not None and timing.speedup_high * rules.slowdown < old.speedup_low:
            yield (
                f"{after.slug}: slower at {timing.case}: {timing.speedup:.2f} times eager's speed "
                f"({timing.over_eager.span}), where it was {old.over_eager}"
            )


def _speedups(after: TargetRecord, before: TargetRecord, rules: Promotion) -> Iterator[str]:
    known = {timing.case: timing for timing in before.timings}
    for timing in after.timings:
        old = known.get(timing.case)
        if old is not None and timing.speedup_low > old.speedup_high * rules.slowdown:
            yield (
                f"{after.slug}: faster at {timing.case}: {timing.speedup:.2f} times eager's speed "
                f"({timing.over_eager.span}), where it was {old.over_eager}"
            )


def _accuracy_gains(
    after: TargetRecord, before: TargetRecord, rules: Promotion, measured: Sequence[SideBySide]
) -> Iterator[str]:
    if before.decided_by_metric is not None:
        return
    new, old = _errors(after, before, measured)
    if new is not None and old is not None and old > max(new, 1.0) * rules.error_growth:
        yield (f"{after.slug}: more accurate: an error {new:.2f} times eager's; before, {old:.2f}")


def _errors(
    after: TargetRecord, before: TargetRecord, measured: Sequence[SideBySide]
) -> tuple[float | None, float | None]:
    """Return both errors in multiples of eager's, as measured on the same inputs, or recorded."""
    for one in measured:
        if one.rmse_after is not None and one.rmse_before is not None:
            return one.rmse_after, one.rmse_before
    return after.rmse_ratio, before.rmse_ratio
