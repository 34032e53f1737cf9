"""Lays out the folded graphs: delivered at the left, compiled at the right, a module a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from handoff.artifacts.release.evidence import (
    INPUTS,
    FoldedGraph,
    FoldedGraphs,
    FoldedModule,
    PassEffect,
)
from handoff.artifacts.release.manifest import Manifest

WIDTH = 800
GRAPH_COLUMNS = ("module", "as delivered", "as compiled", "what passes changed", "leads to")
_BOX_WIDTH, _LEFT, _RIGHT, _GAP, _LINE = 290, 85, 425, 18, 15
_MAX_LINE_CHARACTERS, _MAX_PATH_CHARACTERS, _MAX_LINES = 42, 36, 4
_ARC_STEP, _MAX_ARC = 9, 74


@dataclass(frozen=True)
class Line:
    """One line in a box: its words, their place, and whether it shows a change."""

    words: str
    y: int
    kind: str


@dataclass(frozen=True)
class Box:
    """A module of one of both graphs, `is_changed` where a pass changed it.

    One that is in the delivered graph alone `is_gone` from the compiled one.
    """

    path: str
    x: int
    y: int
    width: int
    height: int
    lines: tuple[Line, ...]
    is_changed: bool
    is_gone: bool = False


@dataclass(frozen=True)
class GraphPicture:
    """What a template draws: boxes, the paths of arrows (SVG's), and a table of the same."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: str
    left: int = _LEFT
    right: int = _RIGHT


def lay_out(manifest: Manifest) -> GraphPicture | None:
    """Return the picture of a release's graphs; None where its record holds none."""
    graphs = manifest.graphs
    if graphs is None:
        return None
    changes = _changes(manifest.passes)
    tops, heights = _rows(graphs, changes)
    columns = ((graphs.delivered, _LEFT), (graphs.compiled, _RIGHT))
    boxes = [
        _box(module, changes, x, (tops[module.path], heights[module.path]))
        for graph, x in columns
        for module in graph.modules
    ]
    compiled_paths = {module.path for module in graphs.compiled.modules}
    for module in graphs.delivered.modules:
        if module.path not in compiled_paths:
            row = (tops[module.path], heights[module.path])
            removed = FoldedModule(f"{module.path}, gone", {})
            box = _box(removed, {removed.path: changes.get(module.path, [])}, _RIGHT, row)
            boxes.append(replace(box, is_gone=True))
    arrows = [arrow for graph, x in columns for arrow in _arrows(graph, x, tops, heights)]
    changed = sum(box.is_changed and box.x == _RIGHT for box in boxes)
    text = (
        f"{graphs.delivered.nodes} nodes as delivered and {graphs.compiled.nodes} as compiled, "
        f"folded to {len(graphs.delivered.modules)} and {len(graphs.compiled.modules)} boxes; "
        + (f"passes changed {changed} of these boxes. " if changed else "no box was changed. ")
        + "The table below says the same."
    )
    height = max(tops[path] + heights[path] for path in tops) + 16
    return GraphPicture(
        WIDTH, height, tuple(boxes), tuple(arrows), tuple(_table(graphs, changes)), text
    )


def format_operators(operators: Mapping[str, int]) -> str:
    """Return operators with their counts, the most frequent first: `conv2d 2, relu`."""
    # A record's keys are in the alphabet's order.
    ordered = sorted(operators.items(), key=lambda pair: (pair[0] == "other", -pair[1]))
    return ", ".join(name if count == 1 else f"{name} {count}" for name, count in ordered)


def _changes(effects: Iterable[PassEffect]) -> dict[str, list[tuple[str, str]]]:
    """Return for each box what passes took out and put in, each with the pass's number."""
    changes: dict[str, list[tuple[str, str]]] = {}
    for number, effect in enumerate(effects, start=1):
        for change in effect.changes:
            for kind, sign, operators in (
                ("removed", "−", change.removed), ("added", "+", change.added),
            ):  # fmt: skip
                if operators:
                    text = f"{sign} {format_operators(operators)}  (pass {number})"
                    changes.setdefault(change.path, []).append((kind, text))
    return changes


def _rows(
    graphs: FoldedGraphs, changes: Mapping[str, list[tuple[str, str]]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return each row's top and height; a module has the same row in both columns."""
    order = [module.path for module in graphs.delivered.modules]
    after = 0
    for module in graphs.compiled.modules:
        if module.path in order:
            after = order.index(module.path)
        else:
            after += 1
            order.insert(after, module.path)
    top, tops, heights = 34, {}, {}
    for path in order:
        lines = 1 + min(_MAX_LINES, len(changes.get(path, ())))
        tops[path], heights[path] = top, 26 + lines * _LINE
        top += heights[path] + _GAP
    return tops, heights


def _box(
    module: FoldedModule,
    changes: Mapping[str, list[tuple[str, str]]],
    x: int,
    row: tuple[int, int],
) -> Box:
    y, height = row
    changed_lines = changes.get(module.path, []) if x == _RIGHT else []
    contents = [("path", _truncate_path(module.path))]
    if module.operators:
        contents.append(("operators", format_operators(module.operators)))
    contents += changed_lines[:_MAX_LINES]
    if len(changed_lines) > _MAX_LINES:
        contents[-1] = ("operators", f"and {len(changed_lines) - _MAX_LINES + 1} further changes")
    lines = (
        Line(_truncate(text), y + 17 + index * _LINE, kind)
        for index, (kind, text) in enumerate(contents)
    )
    return Box(module.path, x, y, _BOX_WIDTH, height, tuple(lines), bool(changed_lines))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_LINE_CHARACTERS else text[: _MAX_LINE_CHARACTERS - 1] + "…"


def _truncate_path(path: str) -> str:
    # Its end says which one of many that begin alike. Paths are set bold, so that fewer fit.
    return path if len(path) <= _MAX_PATH_CHARACTERS else "…" + path[1 - _MAX_PATH_CHARACTERS :]


def _arrows(
    graph: FoldedGraph, x: int, tops: Mapping[str, int], heights: Mapping[str, int]
) -> Iterable[str]:
    """Give an arrow for each edge: straight to the next row, else around the boxes between."""
    ordered = sorted(tops, key=lambda path: tops[path])
    rows = {path: row for row, path in enumerate(ordered)}
    own_rows = sorted(rows[module.path] for module in graph.modules)
    for module in graph.modules:
        for target in module.feeds:
            source, end = rows[module.path], rows[graph.modules[target].path]
            top, bottom = tops[module.path], tops[module.path] + heights[module.path]
            goal = tops[graph.modules[target].path]
            if own_rows.index(end) - own_rows.index(source) == 1:
                middle = x + _BOX_WIDTH // 2
                yield f"M{middle} {bottom} V{goal - 1}"
                continue
            outward = -1 if x == _LEFT else 1
            side = x if outward < 0 else x + _BOX_WIDTH
            bend = min(_MAX_ARC, 12 + _ARC_STEP * abs(own_rows.index(end) - own_rows.index(source)))
            away = side + outward * bend
            begin = (top + bottom) // 2 + (6 if end > source else -6)
            finish = goal + heights[graph.modules[target].path] // 2 + (-6 if end > source else 6)
            yield f"M{side} {begin} C{away} {begin} {away} {finish} {side + outward} {finish}"


def _table(
    graphs: FoldedGraphs, changes: Mapping[str, list[tuple[str, str]]]
) -> Iterable[tuple[str, ...]]:
    """Give the same as rows: module, operators before and after, changes, where it leads."""
    before = {module.path: module for module in graphs.delivered.modules}
    after = {module.path: module for module in graphs.compiled.modules}
    for path in dict.fromkeys([*before, *after, *changes]):
        graph = graphs.compiled if path in after else graphs.delivered
        module = after.get(path) or before.get(path)
        feeds = [graph.modules[index].path for index in module.feeds] if module else []
        is_inputs = path == INPUTS
        yield (
            path,
            format_operators(before[path].operators) if path in before else "",
            format_operators(after[path].operators) if path in after else "",
            "" if is_inputs else "; ".join(text for _, text in changes.get(path, ())),
            ", ".join(feeds),
        )
