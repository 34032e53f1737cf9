"""The report's part on the mechanical blessing: what a program without Python made of a package."""

from __future__ import annotations

from handoff.artifacts.release.mechanics import Mechanics

Rows = list[tuple[str, ...]]


def mechanics_rows(found: Mechanics) -> Rows:
    """Return what was measured: opening, calls a second, memory, replays; a row each."""
    rows: Rows = [
        (
            f"open {one.file}",
            f"{one.open_s * 1e3:.1f} ms, first call {one.first_call_s * 1e3:.2g} ms, "
            f"{one.opened_bytes / 2**20:.1f} MiB beside libtorch's {one.libtorch_bytes >> 20}",
        )
        for one in found.openings
    ]
    rows += [(f"{one.threads} threads", f"{one.calls_per_s:,.0f} calls/s") for one in found.rates]
    if found.growth is not None:
        grown = max(0, found.growth.second_half_bytes) / 2**20
        rows.append((f"memory over {found.growth.calls} calls", f"grew by {grown:.1f} MiB"))
    rows += [
        (
            f"replay of {one.file}, {one.threads} at once, {one.intra_op} threads a call",
            f"{one.calls} calls, {one.different or 'none'} of other bits than in Python",
        )
        for one in found.replays
    ]
    return rows


def hostile_rows(found: Mechanics) -> Rows:
    """Return the inputs that the package alone doesn't refuse, and what became of each."""
    return [
        (one.hostile, one.package, one.guarded, one.told[:120])
        for one in found.trials
        if one.needs_guard or one.guarded != "refused"
    ]
