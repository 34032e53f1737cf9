"""Renders a release's record as one page: no network, no script, light and dark, for print too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from handoff.artifacts.delivery.captures import recommend
from handoff.artifacts.printable import printable
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.layout import REPORT_FILE
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.mechanics import Mechanics, is_survived
from handoff.tasks.report import summary, view
from handoff.tasks.report.cells import Cell, Table, format_count, table
from handoff.tasks.report.error_plots import (
    draw_inputs,
    draw_latency,
    draw_spread,
    format_milliseconds,
    output_name,
)
from handoff.tasks.report.graph_picture import GRAPH_COLUMNS, lay_out
from handoff.tasks.report.numbers import (
    comparisons_table,
    draw_search,
    needs_table,
    search_columns,
    search_rows,
    special_needs_table,
)
from handoff.tasks.report.pictures import Picture

if TYPE_CHECKING:
    from jinja2 import Environment

# The page has to stay small enough for MLflow's frame: a picture takes 15 to 35 kB.
_SPREADS_DRAWN = 6
_TARGETS_DRAWN = 3
_POWER = re.compile(r"[0-9][0-9.]*e-[0-9]+")

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class TargetView:
    """One target's part of the page; what is None or empty is left out, with a sentence why."""

    record: TargetRecord
    needs: Table | None
    special_needs: Table | None
    comparisons: Table | None
    spreads: tuple[Picture, ...]
    spreads_left_out: int
    inputs: Picture | None
    latency: Picture | None
    timings: Table | None
    search: Picture | None
    variants: Table | None
    mechanics: Table | None
    hostile: Table | None
    is_drawn: bool


def render_release(manifest: Manifest) -> str:
    """Return the page of a release, accepted or refused; the same record gives the same page."""
    graph = lay_out(manifest)
    return (
        environment()
        .get_template("release.html.j2")
        .render(
            manifest=manifest,
            verdict=summary.judge(manifest),
            origin=summary.origin(manifest),
            targets=view.targets_table(manifest),
            metrics=view.metrics_table(manifest),
            signature=view.signature_table(manifest),
            lineage=view.lineage_table(manifest),
            findings=view.findings_table(manifest),
            captures=view.captures_table(manifest),
            recommendation=recommend(manifest.captures) if manifest.captures else "",
            passes=view.passes_table(manifest),
            graph=graph,
            graph_table=graph and table("The graph", GRAPH_COLUMNS, graph.rows),
            parts=[_target_view(manifest, index) for index in range(len(manifest.targets))],
            toolchain=table("Toolchain", (), sorted(manifest.toolchain.items())),
            digests=view.digests_table(manifest),
            commands=repeating_commands(manifest),
            recipe=json.dumps(to_plain(manifest.recipe), indent=2, sort_keys=True),
        )
    )


@cache
def environment() -> Environment:
    """Return what renders templates: all that they are given is escaped, and made printable."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    jinja_environment = Environment(
        loader=PackageLoader("handoff.tasks.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_environment.filters["unbroken"] = _keep_numbers_unbroken
    return jinja_environment


def _keep_numbers_unbroken(text: str) -> Markup:
    """Return markup of a text in which no line ends within a number: `1e-06` may end one at its -.

    The text's own characters stay as they are, so that what is copied off the page can be searched.
    """
    plain = str(escape(printable(text)))
    return Markup(_POWER.sub(r'<b class="whole">\g<0></b>', plain))  # noqa: S704 - escaped above


def _finalize(value: object) -> object:
    """Return what a template is to show; pictures and their texts are markup already."""
    if isinstance(value, Markup):
        return Markup(printable(value))  # noqa: S704 - as it was, but for what is not printed
    return printable(value) if isinstance(value, str) else value


def _target_view(manifest: Manifest, index: int) -> TargetView:
    target = manifest.targets[index]
    # Ids on the page are made of these, so that they hold nothing of a delivery's.
    prefix = f"t{index}"
    is_drawn = index < _TARGETS_DRAWN
    budget = _SPREADS_DRAWN // min(len(manifest.targets), _TARGETS_DRAWN)
    spreads = target.spreads[: budget if is_drawn else 0]
    return TargetView(
        record=target,
        needs=needs_table(manifest, target),
        special_needs=special_needs_table(manifest, target),
        comparisons=comparisons_table(manifest, target),
        spreads=tuple(
            draw_spread(
                f"{prefix}-spread{spread.output}",
                output_name(manifest, spread.output),
                spread,
                manifest.recipe.tolerance_for(
                    _output_dtype(manifest, spread.output),
                    output_name(manifest, spread.output),
                    target.slug,
                ),
            )
            for spread in spreads
        ),
        spreads_left_out=len(target.spreads) - len(spreads),
        inputs=draw_inputs(f"{prefix}-inputs", manifest, target) if is_drawn else None,
        latency=draw_latency(f"{prefix}-latency", target) if is_drawn else None,
        timings=view.timings_table(manifest, target),
        search=draw_search(f"{prefix}-search", target) if is_drawn else None,
        variants=table("Variants", search_columns(target), search_rows(target)),
        mechanics=table("Without Python", (), mechanics_rows(target.mechanics))
        if target.mechanics
        else None,
        hostile=_hostile_table(target.mechanics),
        is_drawn=is_drawn,
    )


def _output_dtype(manifest: Manifest, output: int) -> str:
    outputs = manifest.signature.outputs
    return outputs[output].dtype if output < len(outputs) else "float32"


def _hostile_table(mechanics: Mechanics | None) -> Table | None:
    if mechanics is None:
        return None
    # What the checks refuse is well, whatever the package alone does.
    rows = [
        (
            trial.hostile,
            trial.package,
            Cell(trial.guarded, "good" if is_survived(trial.hostile, trial.guarded) else "bad"),
            trial.told[:120],
        )
        for trial in mechanics.trials
        if trial.needs_guard or not is_survived(trial.hostile, trial.guarded)
    ]
    columns = ("input", "the package alone", "with its checks", "message")
    return table("Inputs that the package alone doesn't refuse", columns, rows)


def repeating_commands(manifest: Manifest) -> str:
    """Return the commands that repeat a release, one a line, what they do beside them."""
    version = f"{manifest.model}@{manifest.digest.short}"
    again = ("handoff release delivery --rebuild", "all of it")
    if manifest.recipe != Recipe():
        again = ("handoff release delivery --recipe FILE --rebuild", "all of it, by your recipe")
    commands = (
        (f"handoff pull {version} --to release", "the packages, verified"),
        (f"handoff pull {version} --delivery --to delivery", "what they were made from"),
        ("handoff verify release --delivery delivery", "every comparison above, again"),
        ("handoff inspect delivery --captures", "the findings, and what captures it"),
        again,
        (f"handoff show {version} --json", "this record"),
    )
    width = max(len(command) for command, _ in commands)
    return "\n".join(f"{command:{width}}  # {does}" for command, does in commands)


def mechanics_rows(mechanics: Mechanics) -> Rows:
    """Return what was measured: opening, calls a second, memory, replays; a row each."""
    rows: Rows = [
        (
            f"open {one.file}",
            f"{format_milliseconds(one.open_s)}, first call "
            f"{format_milliseconds(one.first_call_s)}, {one.opened_bytes / 2**20:.1f} MiB on top "
            f"of libtorch's {one.libtorch_bytes >> 20}",
        )
        for one in mechanics.openings
    ]
    rows += [
        (format_count(one.threads, "thread"), f"{one.calls_per_s:,.0f} calls/s")
        for one in mechanics.rates
    ]
    if mechanics.growth is not None:
        grown = max(0, mechanics.growth.second_half_bytes) / 2**20
        rows.append((f"memory over {mechanics.growth.calls} calls", f"grew by {grown:.1f} MiB"))
    rows += [
        (
            f"replay of {one.file}, {one.threads} at once, "
            f"{format_count(one.intra_op, 'thread')} a call",
            f"{one.calls} calls, {one.calls - one.different} bit-identical to Python's",
        )
        for one in mechanics.replays
    ]
    return rows


def evidence(manifest: Manifest) -> dict[str, bytes]:
    """Return each file's name and bytes: the report as a page, which holds its pictures.

    The same record gives the same bytes with the same Matplotlib and Jinja2.
    """
    return {REPORT_FILE: render_release(manifest).encode()}
