"""What is said against a package, by what was found out without Python. No torch is imported."""

from __future__ import annotations

from handoff.artifacts.release.mechanics import Mechanics, is_survived

# From so many threads a package is called at once.
THREADS = (1, 2, 8)

# Memory that a package may come to hold for good while it is called: what an allocator keeps.
_GROWTH_BYTES = 4 << 20
_GROWTH_SHARE = 0.01


def judge_calls(mechanics: Mechanics) -> list[str]:
    """Return the reasons to refuse: what was wrong, and what can't be survived."""
    reasons = [
        f"{replay.file} gave other outputs in C++ than in Python in {replay.beyond_tolerance} of "
        f"{replay.calls} calls from {replay.threads} threads with {replay.intra_op} a call, by up "
        f"to {replay.max_abs:.3g}"
        for replay in mechanics.replays
        if replay.beyond_tolerance
    ]
    reasons += _missing_reports(
        {
            "replays": (len(mechanics.replays), len(THREADS) + 2),
            "hostile inputs": (len(mechanics.trials), 1),
        }
    )
    for trial in mechanics.trials:
        if "not run" in (trial.package, trial.guarded):
            reasons.append(f"the input {trial.hostile} could not be tried: {trial.told}")
        elif not is_survived(trial.hostile, trial.guarded):
            reasons.append(
                f"the input {trial.hostile} is {trial.guarded} by the checked entry, too, and "
                f"{trial.package} by the package: {trial.told}"
            )
    return reasons


def judge_measures(mechanics: Mechanics) -> list[str]:
    """Return the reasons to refuse: what grew, and what nothing was reported of.

    Memory leaks where all through the last quarter of the calls more was held than ever in their
    first half, by more than 4 MiB and 1 % of what was resident: an allocator takes what it then
    keeps, and hands some back and takes it again.
    """
    growth = mechanics.growth
    reasons = _missing_reports(
        {
            "openings": (len(mechanics.openings), 2),
            "memory": (int(growth is not None), 1),
            "calls a second": (len(mechanics.rates), len(THREADS)),
        }
    )
    if growth is not None and growth.second_half_bytes > max(
        _GROWTH_BYTES, _GROWTH_SHARE * growth.resident_bytes
    ):
        reasons.append(
            f"memory grew by {growth.second_half_bytes / 2**20:.1f} MiB over the second half of "
            f"{growth.calls} calls: it leaks"
        )
    return reasons


def _missing_reports(counts: dict[str, tuple[int, int]]) -> list[str]:
    """Return a reason to refuse for each thing of which less was reported (got) than expected."""
    return [
        f"nothing was told of {what} ({got} of {expected})"
        for what, (got, expected) in counts.items()
        if got < expected
    ]
