"""What is written about a release for people: the report, as a page that needs nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from artifacts.evidence import Candidate
from artifacts.manifest import Manifest
from tasks.evidence import evidence
from tests.artifacts.samples import sample_manifest, sample_target


class Page(HTMLParser):
    """The tags of a page, those that are left open, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "hr"):
            self.open.append(tag)
        self.addresses += [v or "" for n, v in attrs if n in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def searched() -> Manifest:
    """Return a manifest whose target was searched for, so that there is a picture."""
    plain = Candidate("plain", True, (), 3.0, 1_000_000, 1e-7, (0.01,), (1.0,), (1.0,), (1.0,))
    quicker = replace(plain, name="freezing", ratios=(1.4,), ratios_high=(1.5,), max_abs=2e-7)
    return sample_manifest(replace(sample_target("cpu-avx2"), candidates=(plain, quicker)))


def test_the_evidence_is_the_report_as_text_and_as_a_page_and_its_pictures() -> None:
    files = evidence(searched())
    assert set(files) == {"report.md", "report.html", "search-cpu-avx2.svg"}
    assert files["report.md"].startswith(b"# toy: accepted")
    assert files == evidence(searched())


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = Page(evidence(searched())["report.html"].decode())
    assert page.open == []
    assert {"h1", "table", "svg", "style"} <= set(page.tags)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert all(address.startswith(("#", "mailto:")) for address in page.addresses)


def test_the_picture_stands_where_the_report_names_it() -> None:
    text = evidence(searched())["report.html"].decode()
    assert "Drawn in" not in text
    assert text.index("The search") < text.index("<svg") < text.index("Instruction sets")


def test_what_a_delivery_says_stays_text() -> None:
    manifest = searched()
    words = "<script>alert(1)</script> [x](javascript:alert(1)) <img src=x onerror=alert(1)>"
    lineage = replace(manifest.lineage, training_run=words, repository="<b>| x |</b>")
    page = Page(evidence(replace(manifest, lineage=lineage))["report.html"].decode())
    assert not {"script", "img", "b"} & set(page.tags)
    assert not [one for one in page.addresses if one.startswith("javascript:")]


def test_verdicts_are_coloured_and_nothing_else_is() -> None:
    text = evidence(searched())["report.html"].decode()
    assert re.findall(r'<td class="good">(\w+)</td>', text) == ["accepted", "yes"]
    target = sample_target("cpu-avx2")
    wrong = replace(target.deviations[0], reasons=("wrong by 3",))
    refused = replace(target, accepted=False, reasons=("wrong",), deviations=(wrong,))
    text = evidence(sample_manifest(refused))["report.html"].decode()
    assert '<td class="bad">no</td>' in text
