"""Pages about several versions: what differs between two, and a model over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from handoff.artifacts.night import ALARMING, Night
from handoff.artifacts.release.difference import compare_deliveries, differences
from handoff.artifacts.release.interval import format_package_size, ratio
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.cells import Cell, Table, format_count, table
from handoff.tasks.report.page import environment
from handoff.tasks.report.pictures import FIRST, INK, SECOND, Picture, draw
from handoff.tasks.report.summary import format_time, origin
from handoff.tasks.report.view import verdict_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SECTIONS = ("source", "contract", "passes", "recipe", "toolchain")
# A screen reader reads so many versions; the table has all.
_VERSIONS_IN_TEXT = 12
_FIGURES = ("target", "", "verdict", "largest error", "RMSE / eager's", "over eager", "size")


@dataclass(frozen=True)
class NamedVersion:
    """A version's record under the name that people call it by, such as `ranker@7`.

    `delivery` are its `delivery_digests`; none where it wasn't kept.
    """

    name: str
    manifest: Manifest
    delivery: Mapping[str, str] = field(default_factory=dict)


def render_difference(before: NamedVersion, after: NamedVersion) -> str:
    """Return a page of what differs between two versions; the same records give the same page."""
    changes = (
        *compare_deliveries(before.delivery, after.delivery),
        *differences(before.manifest, after.manifest),
    )
    # What differs between packages stands side by side at the top.
    by_section = [
        (section, [(one.name, one.before or "-", one.after or "-") for one in group])
        for section, group in groupby(changes, key=lambda one: one.section)
        if section in _SECTIONS
    ]
    columns = ("", before.name, after.name)
    tables = [table(section.capitalize(), columns, rows) for section, rows in by_section]
    differing = {section for section, _ in by_section}
    return (
        environment()
        .get_template("difference.html.j2")
        .render(
            before=before.name,
            after=after.name,
            origins=[origin(one.manifest) for one in (before, after)],
            figures=table("Numbers, speed, size", _FIGURES, _comparison_rows(before, after)),
            sections=tables,
            alike=", ".join(section for section in _SECTIONS if section not in differing),
        )
    )


def _comparison_rows(before: NamedVersion, after: NamedVersion) -> Iterator[tuple[str | Cell, ...]]:
    versions = (before, after)
    slugs = [target.slug for one in versions for target in one.manifest.targets]
    for slug in dict.fromkeys(slugs):
        for one in versions:
            record = next((t for t in one.manifest.targets if t.slug == slug), None)
            figures = ("no such target", *4 * ("-",)) if record is None else _figure_cells(record)
            yield (Cell(slug, "code"), one.name, *figures)


def _figure_cells(target: TargetRecord) -> tuple[str | Cell, ...]:
    return (
        verdict_cell(target),
        "-" if target.max_abs is None else f"{target.max_abs:.2g}",
        "-" if target.rmse_ratio is None else ratio(target.rmse_ratio),
        target.headline.over_eager.text if target.headline else "-",
        format_package_size(target.size_bytes),
    )


def render_history(
    model: str,
    entries: Sequence[LedgerEntry],
    versions: Mapping[int, Manifest],
    nights: Sequence[Night],
    *,
    alias: str = "production",
) -> str:
    """Return a page of a model over time: its versions, what served when, what nights did.

    `entries` are its ledger's, oldest first; `versions` are the records that are shown, by number,
    and `nights` those that are.
    """
    newest = entries[-1]
    current = newest.aliases.get(alias)
    omitted = newest.newest - len(versions)
    return (
        environment()
        .get_template("history.html.j2")
        .render(
            model=model,
            alias=alias,
            summary=f"{format_count(newest.newest, 'version')}; {alias}: "
            + (f"version {current.version}" if current else "nothing yet"),
            pictures=[picture for picture in (_draw_versions(versions),) if picture],
            versions=_versions_table(newest, versions),
            left_out=f"{omitted} older or retired ones are left out." if omitted else "",
            served=_served_table(entries, alias),
            nights=_nights_table(model, nights),
        )
    )


def _versions_table(newest: LedgerEntry, versions: Mapping[int, Manifest]) -> Table | None:
    rows = [
        (
            str(version),
            format_time(manifest.created),
            Cell(manifest.lineage.short_commit(), "code") if manifest.lineage.commit else "-",
            ", ".join(f"@{alias}" for alias in newest.aliases_of(version)) or "-",
            Cell(target.slug, "code"),
            *_figure_cells(target),
        )
        for version, manifest in sorted(versions.items(), reverse=True)
        for target in manifest.targets
    ]
    columns = ("version", "released", "commit", "aliases", "target", *_FIGURES[2:])
    return table("Versions", columns, rows)


def _served_table(entries: Sequence[LedgerEntry], alias: str) -> Table | None:
    moves = [entry for entry in entries if entry.alias == alias]
    if not moves:
        return None
    until = [*(format_time(entry.at) for entry in moves[1:]), "now"]
    rows = [
        (
            str(entry.version),
            format_time(entry.at),
            end,
            entry.action,
            entry.by,
            "; ".join(filter(None, (entry.reason, *(f"set aside: {o}" for o in entry.overrides)))),
        )
        for entry, end in zip(moves, until, strict=True)
    ]
    columns = ("version", "from", "until", "by a", "who", "why")
    return table(f"What was in {alias}", columns, reversed(rows))


def _nights_table(model: str, nights: Sequence[Night]) -> Table | None:
    night_rows = [(night, row) for night in nights for row in night.rows if row.model == model]
    rows = [
        (
            night.date,
            Cell(row.outcome, "bad" if row.outcome in ALARMING else ""),
            str(row.old or "-"),
            str(row.new or "-"),
            row.why,
        )
        for night, row in sorted(night_rows, key=lambda one: one[0].started, reverse=True)
    ]
    return table("Nights", ("night", "outcome", "served before", "made", "why"), rows)


def _draw_versions(versions: Mapping[int, Manifest]) -> Picture | None:
    """Draw each version's error and speed on its first target that was measured."""
    points = [
        (version, target)
        for version, manifest in sorted(versions.items())
        for target in manifest.targets[:1]
        if target.rmse_ratio is not None or target.headline is not None
    ]
    if not points:
        return None

    def paint(figure: Figure) -> None:
        errors, speeds = figure.subplots(1, 2)
        errors.plot(
            [version for version, target in points if target.rmse_ratio is not None],
            [target.rmse_ratio for _, target in points if target.rmse_ratio is not None],
            marker="o", color=SECOND,
        )  # fmt: skip
        errors.set_title("RMSE to float64, in eager's")
        for version, target in points:
            if target.headline is not None:
                _paint_speed(speeds, version, target)
        speeds.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
        speeds.set_title("times as fast as eager, 95 %")
        for axes in (errors, speeds):
            axes.set_xlabel("version")
            axes.set_xticks([version for version, _ in points][:: max(1, len(points) // 12)])
            # Room above for points and bars at the top.
            axes.set_ylim(0.0, 1.1 * max(axes.get_ylim()[1], 0.1))
            axes.grid(axis="y")

    descriptions = "; ".join(
        _describe_version(version, target) for version, target in points[-_VERSIONS_IN_TEXT:]
    )
    return draw(
        "versions", (8.2, 2.9), paint,
        caption="Of each version's first target, as it was measured when it was released.",
        text=f"Error and speed by version. {descriptions}.",
    )  # fmt: skip


def _describe_version(version: int, target: TargetRecord) -> str:
    parts = [f"version {version}"]
    if target.rmse_ratio is not None:
        parts.append(f"error {ratio(target.rmse_ratio)} times eager's")
    if target.headline is not None:
        parts.append(f"speed {target.headline.over_eager.text}")
    return ", ".join(parts)


def _paint_speed(axes: Axes, version: int, target: TargetRecord) -> None:
    assert target.headline is not None
    speed = target.headline.over_eager
    axes.plot([version, version], [speed.low, speed.high], color=FIRST, linewidth=2.5, alpha=0.6)
    axes.plot([version], [speed.value], marker="o", color=FIRST)
