"""Pictures for a page: Matplotlib's SVG, inline, in the page's colours, with words for it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Matplotlib wants numbers for colours, the page has names for them: these stand for one another.
INK, MUTED, FAINT = "#101010", "#606060", "#d0d0d0"
FIRST, SECOND, THIRD = "#0070b0", "#d05000", "#009070"
_NAMES = {
    INK: "--ink", MUTED: "--muted", FAINT: "--line",
    FIRST: "--first", SECOND: "--second", THIRD: "--third",
}  # fmt: skip

_SETTINGS = {
    "svg.hashsalt": "handoff", "svg.fonttype": "none", "text.parse_math": False,
    "axes.formatter.use_mathtext": False, "font.size": 9.5, "axes.titlesize": 10,
    "axes.titlelocation": "left", "text.color": INK, "axes.labelcolor": INK,
    "axes.titlecolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": FAINT, "grid.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none",
    "figure.facecolor": "none", "legend.frameon": False, "axes.axisbelow": True,
    "patch.linewidth": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """An SVG element, and what is written below it; `text` says in words what it shows."""

    svg: Markup
    caption: str
    text: str


def drawing() -> AbstractContextManager[Any]:
    """Set Matplotlib up for as long as a picture is drawn; the same record gives the same bytes."""
    import matplotlib as mpl

    # Its stubs name every setting there is.
    settings: Any = _SETTINGS
    return mpl.rc_context(settings)


def make_logarithmic(axes: Axes) -> None:
    """Scale the x axis by powers of ten, with plain numbers at them and between them none."""
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw(
    name: str,
    size: tuple[float, float],
    paint: Callable[[Figure], None],
    *,
    caption: str,
    text: str,
) -> Picture:
    """Return what `paint` draws on a figure of `size` (inches); `name` is unique on the page."""
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    return Picture(_inline(written.getvalue().decode(), name, text), caption, text)


def _inline(document: str, name: str, text: str) -> Markup:
    """Return the SVG element of a document: named ids, the page's colours and font, a title."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Several pictures stand on one page, and Matplotlib numbers each one's parts from one.
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for color, variable in _NAMES.items():
        svg = svg.replace(color, f"var({variable})")
    svg = re.sub(r"(font: [^;\"]*px) [^;\"]*", r"\1 var(--font)", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    opening = svg[: svg.index(">") + 1]
    box = re.search(r'viewBox="([^"]*)"', opening)
    assert box is not None, "Matplotlib writes a view box"
    width, height = box[1].split()[2:]
    return Markup(  # noqa: S704 - Matplotlib escapes what it writes, and the words are escaped here
        f'<svg viewBox="{box[1]}" width="{float(width) * 4 / 3:.0f}" '
        f'height="{float(height) * 4 / 3:.0f}" role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{escape(text)}</title>{svg[len(opening) :]}'
    )
