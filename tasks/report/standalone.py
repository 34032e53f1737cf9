"""The report as one page of HTML that needs nothing else: inline style, inline pictures.

MLflow shows it in a frame without the network. The Markdown is the same report; what a delivery
says in it stays text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from handoff.artifacts.printable import printable

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
        found = mention.search(body)
        body = body[: found.start()] + figure + body[found.end() :] if found else body + figure
    title = html.escape(printable(report).partition("\n")[0].lstrip("# "))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
