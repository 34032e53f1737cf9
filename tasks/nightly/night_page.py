"""The night as people read it: a table for a log, Markdown for a Prefect report, one HTML page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from handoff.artifacts.mlflow.description import PLAIN_ADDRESS
from handoff.artifacts.night import ALARMING, Night, NightRow, Outcome
from handoff.artifacts.printable import markdown_text, printable
from handoff.artifacts.release.comparison import Comparison, PackageFigures
from handoff.tasks.report.pictures import render_page

_COLUMNS = (
    "model", "outcome", "version", "target", "speed over eager", "new over old", "error", "size",
    "compiled in",
)  # fmt: skip
# What a person has to look at first; what nothing happened to is listed in one line.
_ORDER: tuple[Outcome, ...] = ("crashed", "failed", "refused", "replaced", "kept", "skipped")
_LEGEND = (
    "Speed over eager and of the new over the old package: medians at the largest timed input, "
    "with 95 % intervals. Error: the RMSE to float64, in multiples of eager's."
)
_RECORDED = "* as its record has it, since it was not run here"

# Of each outcome, in a line that is to be read at a glance.
_NAMES_SHOWN = 6

_Row = tuple[str, ...]


def text_table(night: Night) -> str:
    """Return the night for a log: plain columns, then why."""
    rows = [
        _COLUMNS,
        *(tuple(cell.replace("→", "->") for cell in row) for row in _table_rows(night)),
    ]
    lines = [headline(night), *([_format_toolchain(night)] if night.toolchain else [])]
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = (map(str.ljust, row, widths) for row in rows)
        lines += ["", *("  ".join(cells).rstrip() for cells in padded)]
        lines += _footnote(rows)
    lines += ["", *(f"{model}: {why}" for model, why in _reasons(night))]
    lines += night.conformance
    lines += [f"unchanged: {', '.join(names)}"] if (names := _unchanged_models(night)) else []
    return printable("\n".join(lines).rstrip() + "\n")


def render_night(night: Night, pictures: Iterable[str] = ()) -> str:
    """Return the night in Markdown; `pictures` are the trends' file names."""
    rows = [tuple(map(markdown_text, row)) for row in _table_rows(night)]
    runs = {markdown_text(row.model): link_model(row.model, row.run) for row in night.rows}
    rows = [(runs.get(row[0], row[0]), *row[1:]) for row in rows]
    marked = [(row[0], f"**{row[1]}**" if row[1] in ALARMING else row[1], *row[2:]) for row in rows]
    parts = [f"# {markdown_text(headline(night))}"]
    if marked:
        table_lines = [_COLUMNS, ("---",) * len(_COLUMNS), *marked]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in table_lines))
        parts += map(markdown_text, [_LEGEND, *_footnote(rows)])
    if reasons := _reasons(night):
        lines = [
            f"- **{runs[markdown_text(model)]}**: {markdown_text(why)}" for model, why in reasons
        ]
        parts.append("## Why\n\n" + "\n".join(lines))
    if night.conformance:
        lines = [f"- {markdown_text(sentence)}" for sentence in night.conformance]
        parts.append("## The toolchain's operators\n\n" + "\n".join(lines))
    if names := _unchanged_models(night):
        parts.append(f"## Unchanged\n\n{markdown_text(', '.join(names))}")
    if night.toolchain:
        parts.append(f"## Built with\n\n{markdown_text(_format_toolchain(night))}")
    if mentions := [f"Drawn in `{name}`." for name in pictures]:
        parts.append("\n\n".join(["## Trends", *mentions]))
    return "\n\n".join(parts) + "\n"


def render_night_page(night: Night, pictures: Mapping[str, bytes]) -> str:
    """Return one page that needs nothing else; `pictures` are trends as SVG, by file name."""
    drawn = {name: data.decode() for name, data in pictures.items()}
    page = render_page(render_night(night, drawn), drawn)
    page = re.sub(r"<td><strong>(failed|crashed)</strong></td>", r'<td class="bad">\1</td>', page)
    return page.replace("<td>replaced</td>", '<td class="good">replaced</td>')


def format_outcomes(night: Night) -> str:
    """Return in one line of Markdown what happened to which model, what went wrong first."""
    parts = []
    for outcome in _ORDER:
        rows = [row for row in night.rows if row.outcome == outcome]
        names = ", ".join(link_model(row.model, row.run) for row in rows[:_NAMES_SHOWN])
        more = f" and {len(rows) - _NAMES_SHOWN} more" if len(rows) > _NAMES_SHOWN else ""
        if rows:
            word = f"**{outcome}**" if outcome in ALARMING else outcome
            parts.append(f"{word}: {names}{more}")
    return " · ".join(parts)


def link_model(model: str, run: str) -> str:
    """Return a model's name in Markdown, with a link to its run's page where there is one."""
    name = markdown_text(model)
    return f"[{name}]({run})" if PLAIN_ADDRESS.fullmatch(run) else name


def headline(night: Night) -> str:
    """Return the night in one line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in night.counts.items())
    models = "1 model" if len(night.rows) == 1 else f"{len(night.rows)} models"
    return f"Night of {night.date}: {models} in {_format_duration(night.seconds)}" + (
        f": {counts}" if counts else ""
    )


def _format_toolchain(night: Night) -> str:
    return ", ".join(
        version if version.startswith(name) else f"{name} {version}"
        for name, version in sorted(night.toolchain.items())
    )


def _table_rows(night: Night) -> list[_Row]:
    """Return a line for each target of every model that something happened to."""
    eventful = [row for row in night.rows if row.outcome in _ORDER]
    eventful.sort(key=lambda row: (_ORDER.index(row.outcome), row.model))
    table_rows: list[_Row] = []
    for row in eventful:
        first = (row.model, row.outcome, _format_versions(row))
        cells = [_comparison_cells(one) for one in row.comparisons] or [
            ("-",) * (len(_COLUMNS) - 3)
        ]
        # The names stand once, above the further targets.
        table_rows += [
            (first if index == 0 else ("", "", "")) + figures for index, figures in enumerate(cells)
        ]
    return table_rows


def _format_versions(row: NightRow) -> str:
    old, new = (str(version or "-") for version in (row.old, row.new))
    if row.outcome == "replaced":
        return f"{old} → {new}"
    return f"{old}, not {new}" if row.new else old


def _comparison_cells(comparison: Comparison) -> _Row:
    heat = comparison.heats[-1] if comparison.heats else None
    new_to_old = heat.new_to_old if heat is not None else None
    return (
        comparison.target,
        _format_change(
            _format_speed(comparison.old), _format_speed(comparison.new, with_interval=True)
        ),
        "-" if new_to_old is None else new_to_old.text,
        _format_change(_format_error(comparison.old), _format_error(comparison.new)),
        _format_change(_format_megabytes(comparison.old), _format_megabytes(comparison.new))
        + " MB",
        _format_change(_format_compile_time(comparison.old), _format_compile_time(comparison.new)),
    )


def _format_change(before: str, after: str) -> str:
    return f"{before} → {after}"


def _format_speed(figures: PackageFigures, *, with_interval: bool = False) -> str:
    if figures.speed is None:
        return "-"
    short = f"{figures.speed.value:.2f}" if figures.speed.is_known else "not known"
    text = figures.speed.text if with_interval else short
    return text + _recorded_mark(figures)


def _format_error(figures: PackageFigures) -> str:
    return (
        "-" if figures.rmse_ratio is None else f"{figures.rmse_ratio:.2f}{_recorded_mark(figures)}"
    )


def _format_megabytes(figures: PackageFigures) -> str:
    return f"{figures.size_bytes / 1e6:.1f}"


def _format_compile_time(figures: PackageFigures) -> str:
    if figures.reused:
        return f"{figures.reused} cached"
    return "-" if figures.compiled_s is None else f"{figures.compiled_s:.0f} s"


def _recorded_mark(figures: PackageFigures) -> str:
    return "*" if figures.basis == "recorded" else ""


def _footnote(rows: Sequence[_Row]) -> list[str]:
    return [_RECORDED] if any("*" in cell for row in rows for cell in row[4:]) else []


def _reasons(night: Night) -> list[tuple[str, str]]:
    """Return why, for each model that something happened to, in the table's order."""
    rows = [row for row in night.rows if row.outcome in _ORDER]
    rows.sort(key=lambda row: (_ORDER.index(row.outcome), row.model))
    # Nothing has changed about these, and yet there is a newer version that doesn't serve.
    rows += [
        row for row in night.rows if row.outcome == "unchanged" and row.new not in (None, row.old)
    ]
    reasons = [
        (row.model, row.why or "; ".join(why for one in row.comparisons for why in one.reasons))
        for row in rows
    ]
    return [(model, why) for model, why in reasons if why]


def _unchanged_models(night: Night) -> list[str]:
    return [row.model for row in night.rows if row.outcome == "unchanged"]


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
