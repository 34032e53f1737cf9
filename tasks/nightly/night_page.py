"""The night as people read it: a table for a log, Markdown for a Prefect report, one HTML page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from handoff.artifacts.mlflow.description import PLAIN_ADDRESS
from handoff.artifacts.night import ALARMING, Night, NightRow, Outcome
from handoff.artifacts.printable import markdown_text, printable
from handoff.artifacts.release.comparison import Comparison, PackageFigures
from handoff.tasks.report.standalone import render_page

_COLUMNS = (
    "model", "outcome", "version", "target", "speed over eager", "new over old", "error", "size",
    "compiled in",
)  # fmt: skip
# What a person has to look at first; what nothing happened to is told in one line.
_ORDER: tuple[Outcome, ...] = ("crashed", "failed", "refused", "replaced", "kept", "skipped")
_LEGEND = (
    "Speed over eager and of the new over the old package: medians at the largest timed input, "
    "with 95 % intervals. Error: the RMSE to float64, in multiples of eager's."
)
_RECORDED = "* as its record has it, since it was not run here"

# Of each outcome, in a line that is to be read at a glance.
_NAMED = 6

_Row = tuple[str, ...]


def text_table(night: Night) -> str:
    """Return the night for a log: plain columns, then why."""
    rows = [_COLUMNS, *(tuple(cell.replace("→", "->") for cell in row) for row in _rows(night))]
    lines = [headline(night), *([_toolchain(night)] if night.toolchain else [])]
    if len(rows) > 1:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = (map(str.ljust, row, widths) for row in rows)
        lines += ["", *("  ".join(cells).rstrip() for cells in padded)]
        lines += _footnote(rows)
    lines += ["", *(f"{model}: {why}" for model, why in _reasons(night))]
    lines += night.conformance
    lines += [f"unchanged: {', '.join(names)}"] if (names := _unchanged(night)) else []
    return printable("\n".join(lines).rstrip() + "\n")


def render_night(night: Night, pictures: Iterable[str] = ()) -> str:
    """Return the night in Markdown; `pictures` are the trends' file names."""
    rows = [tuple(map(markdown_text, row)) for row in _rows(night)]
    runs = {markdown_text(row.model): linked(row.model, row.run) for row in night.rows}
    rows = [(runs.get(row[0], row[0]), *row[1:]) for row in rows]
    marked = [(row[0], f"**{row[1]}**" if row[1] in ALARMING else row[1], *row[2:]) for row in rows]
    parts = [f"# {markdown_text(headline(night))}"]
    if marked:
        lines = [_COLUMNS, ("---",) * len(_COLUMNS), *marked]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
        parts += map(markdown_text, [_LEGEND, *_footnote(rows)])
    if reasons := _reasons(night):
        told = [
            f"- **{runs[markdown_text(model)]}**: {markdown_text(why)}" for model, why in reasons
        ]
        parts.append("## Why\n\n" + "\n".join(told))
    if night.conformance:
        told = [f"- {markdown_text(sentence)}" for sentence in night.conformance]
        parts.append("## The toolchain's operators\n\n" + "\n".join(told))
    if names := _unchanged(night):
        parts.append(f"## Unchanged\n\n{markdown_text(', '.join(names))}")
    if night.toolchain:
        parts.append(f"## Built with\n\n{markdown_text(_toolchain(night))}")
    if drawn := [f"Drawn in `{name}`." for name in pictures]:
        parts.append("\n\n".join(["## Trends", *drawn]))
    return "\n\n".join(parts) + "\n"


def render_night_page(night: Night, pictures: Mapping[str, bytes]) -> str:
    """Return one page that needs nothing else; `pictures` are trends as SVG, by file name."""
    drawn = {name: data.decode() for name, data in pictures.items()}
    page = render_page(render_night(night, drawn), drawn)
    page = re.sub(r"<td><strong>(failed|crashed)</strong></td>", r'<td class="bad">\1</td>', page)
    return page.replace("<td>replaced</td>", '<td class="good">replaced</td>')


def outcomes(night: Night) -> str:
    """Return in one line of Markdown what happened to which model, what went wrong first."""
    told = []
    for outcome in _ORDER:
        rows = [row for row in night.rows if row.outcome == outcome]
        names = ", ".join(linked(row.model, row.run) for row in rows[:_NAMED])
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        if rows:
            word = f"**{outcome}**" if outcome in ALARMING else outcome
            told.append(f"{word}: {names}{more}")
    return " · ".join(told)


def linked(model: str, run: str) -> str:
    """Return a model's name in Markdown, with a link to its run's page where there is one."""
    name = markdown_text(model)
    return f"[{name}]({run})" if PLAIN_ADDRESS.fullmatch(run) else name


def headline(night: Night) -> str:
    """Return the night in one line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in night.counts.items())
    models = "1 model" if len(night.rows) == 1 else f"{len(night.rows)} models"
    return f"Night of {night.date}: {models} in {_duration(night.seconds)}" + (
        f": {counts}" if counts else ""
    )


def _toolchain(night: Night) -> str:
    return ", ".join(
        version if version.startswith(name) else f"{name} {version}"
        for name, version in sorted(night.toolchain.items())
    )


def _rows(night: Night) -> list[_Row]:
    """Return a line for each target of every model that something happened to."""
    told = [row for row in night.rows if row.outcome in _ORDER]
    told.sort(key=lambda row: (_ORDER.index(row.outcome), row.model))
    found: list[_Row] = []
    for row in told:
        first = (row.model, row.outcome, _versions(row))
        cells = [_cells(one) for one in row.comparisons] or [("-",) * (len(_COLUMNS) - 3)]
        # The names stand once, above the further targets.
        found += [(first if place == 0 else ("", "", "")) + own for place, own in enumerate(cells)]
    return found


def _versions(row: NightRow) -> str:
    old, new = (str(one or "-") for one in (row.old, row.new))
    if row.outcome == "replaced":
        return f"{old} → {new}"
    return f"{old}, not {new}" if row.new else old


def _cells(one: Comparison) -> _Row:
    heat = one.heats[-1] if one.heats else None
    beside = heat.new_to_old if heat is not None else None
    return (
        one.target,
        _change(_speed(one.old), _speed(one.new, with_interval=True)),
        "-" if beside is None else beside.text,
        _change(_error(one.old), _error(one.new)),
        _change(_megabytes(one.old), _megabytes(one.new)) + " MB",
        _change(_compiled(one.old), _compiled(one.new)),
    )


def _change(before: str, after: str) -> str:
    return f"{before} → {after}"


def _speed(one: PackageFigures, *, with_interval: bool = False) -> str:
    if one.speed is None:
        return "-"
    short = f"{one.speed.value:.2f}" if one.speed.is_known else "not known"
    told = one.speed.text if with_interval else short
    return told + _mark(one)


def _error(one: PackageFigures) -> str:
    return "-" if one.rmse_ratio is None else f"{one.rmse_ratio:.2f}{_mark(one)}"


def _megabytes(one: PackageFigures) -> str:
    return f"{one.size_bytes / 1e6:.1f}"


def _compiled(one: PackageFigures) -> str:
    if one.reused:
        return f"{one.reused} cached"
    return "-" if one.compiled_s is None else f"{one.compiled_s:.0f} s"


def _mark(one: PackageFigures) -> str:
    return "*" if one.basis == "recorded" else ""


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
    return [(row.model, why) for row in rows if (why := row.why or "; ".join(_told(row)))]


def _told(row: NightRow) -> Iterator[str]:
    for one in row.comparisons:
        yield from one.reasons


def _unchanged(night: Night) -> list[str]:
    return [row.model for row in night.rows if row.outcome == "unchanged"]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
