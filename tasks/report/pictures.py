"""One page of HTML that needs nothing else, and the pictures that stand in it.

MLflow shows it in a frame without the network. The Markdown is the same report; what a delivery
says in it stays text.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from handoff.artifacts.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Matplotlib wants numbers for colours, the page has names for them: these stand for one another.
INK, MUTED, FAINT = "#101010", "#606060", "#d0d0d0"
FIRST, SECOND, THIRD = "#0070b0", "#d05000", "#009070"
_CSS_VARIABLES = {
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
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Its stubs name every setting there is.
    settings: Any = _SETTINGS
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return Picture(_inline(buffer.getvalue().decode(), name, text), caption, text)


def _inline(document: str, name: str, text: str) -> Markup:
    """Return the SVG element of a document: named ids, the page's colours and font, a title."""
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Several pictures stand on one page, and Matplotlib numbers each one's parts from one.
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for color, variable in _CSS_VARIABLES.items():
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


_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: #1f272d;
  background: #fff; max-width: 68rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d9dee2;
  padding-bottom: .25rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; margin: .6rem 0 1rem; display: block; overflow-x: auto; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #e4e8eb; text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums; }
th { border-bottom: 2px solid #c3cbd1; white-space: nowrap; font-weight: 600; }
thead:not(:has(th:not(:empty))) { display: none; }
td:first-child { white-space: nowrap; }
td.good { color: #147a43; } td.bad { color: #b3261e; font-weight: 600; }
tr:hover td { background: #f6f8f9; }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code { background: #f1f3f5; padding: .08rem .3rem; border-radius: 3px; overflow-wrap: anywhere; }
pre { background: #f6f8f9; border: 1px solid #e4e8eb; border-radius: 4px; padding: .7rem .9rem;
  overflow-x: auto; }
pre code { background: none; padding: 0; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; }
"""


def render_page(report: str, pictures: Mapping[str, str]) -> str:
    """Return the page of a report in Markdown; `pictures` are SVG texts by file name.

    A picture stands where the report names its file; one that it doesn't name stands at the end.
    """
    from markdown_it import MarkdownIt

    # Raw HTML in the Markdown is shown as text: findings quote what a delivery says.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(printable(report))
    # A hostile input that is refused is well; of a target it says so in bold.
    body = re.sub(r"<td>(accepted|yes|refused)</td>", r'<td class="good">\1</td>', body)
    body = re.sub(r"<td><strong>(refused|no)</strong></td>", r'<td class="bad">\1</td>', body)
    for name, svg in pictures.items():
        start = svg.find("<svg")
        figure = f"<figure>{svg[start:]}</figure>\n"
        mention = re.compile(rf"<p>[^<]*<code>{re.escape(name)}</code>[^<]*</p>\n")
        match = mention.search(body)
        body = body[: match.start()] + figure + body[match.end() :] if match else body + figure
    title = html.escape(printable(report).partition("\n")[0].lstrip("# "))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
