"""The rules of a promotion: both blessings, and not worse than what is replaced.

Where both packages run on the promoting machine, their speed is measured there, in turns. Else it
is compared by what both were timed beside: the speed-up over eager with its 95 % interval, of as
many threads. Errors are compared by the RMSE to float64 in multiples of eager's. Times of two
releases, measured on different days, are never compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from artifacts.changes import SideBySide
from artifacts.manifest import Manifest, TargetRecord
from artifacts.recipe import Promotion


def broken_rules(
    wanted: Manifest, replaced: Manifest | None, measured: tuple[SideBySide, ...] = ()
) -> tuple[str, ...]:
    """Return a sentence for each rule that `wanted` breaks, by its own recipe; none if it may go.

    `replaced` is what the alias stands for now, None where it stands for nothing. `measured` are
    the targets that were timed beside what they replace.
    """
    rules = wanted.recipe.promotion
    seen = {one.target: one for one in measured}
    broken = [text for target in wanted.targets for text in _unblessed(target)]
    if replaced is not None:
        after = {target.slug: target for target in wanted.targets}
        for before in replaced.targets:
            if not before.accepted:
                continue
            if before.slug not in after:
                broken.append(f"{before.slug}: served now, and not part of this release")
                continue
            if before.slug in seen:
                broken += _slower_beside(seen[before.slug], rules)
            else:
                broken += _slower(after[before.slug], before, rules)
            broken += _less_accurate(after[before.slug], before, rules)
    return tuple(broken)


def _unblessed(target: TargetRecord) -> Iterator[str]:
    if not target.accepted:
        yield f"{target.slug}: {target.verdict}"
        return
    if not target.deviations:
        yield f"{target.slug}: no numeric blessing"
    if target.mechanics is None:
        yield f"{target.slug}: no mechanical blessing"
    if not target.timings:
        yield f"{target.slug}: its speed was not measured"


def _slower_beside(measured: SideBySide, rules: Promotion) -> Iterator[str]:
    if measured.high * rules.slowdown < 1.0:
        yield f"slower: {measured}"


def _slower(after: TargetRecord, before: TargetRecord, rules: Promotion) -> Iterator[str]:
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
                f"({timing.speedup_low:.2f} to {timing.speedup_high:.2f}), where it was "
                f"{old.speedup:.2f} ({old.speedup_low:.2f} to {old.speedup_high:.2f})"
            )


def _less_accurate(after: TargetRecord, before: TargetRecord, rules: Promotion) -> Iterator[str]:
    new, old = after.rmse_ratio, before.rmse_ratio
    if new is not None and old is not None and new > max(old, 1.0) * rules.error_growth:
        yield (
            f"{after.slug}: less accurate: an error {new:.2f} times eager's, where it was {old:.2f}"
        )
