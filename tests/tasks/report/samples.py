"""A release's record with all that a page can show, and a reader of pages."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.recipe.tolerance import ErrorFigures, ErrorSpread
from handoff.artifacts.release.evidence import (
    Candidate,
    FoldedGraph,
    FoldedGraphs,
    FoldedModule,
    ModuleChange,
    PassEffect,
    ServedTiming,
    ServedVersion,
    Timing,
)
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.mechanics import Growth, Mechanics, Rate, Trial
from tests.artifacts.samples import sample_manifest, sample_target

_EMPTY = ("meta", "br", "hr")


class Page(HTMLParser):
    """A page's tags, those left open, what it refers to, its ids, its words and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _EMPTY:
            self.open.append(tag)
        self.addresses += [v or "" for n, v in attrs if n in ("src", "href", "xlink:href")]
        self.ids += [v or "" for n, v in attrs if n == "id"]
        if tag == "svg":
            self.pictures.append(dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title") and (words := data.split()):
            self.words += " ".join(words) + " "


def searched_target(slug: str = "cpu-avx2") -> TargetRecord:
    """Return a target of which everything is known."""
    plain = Candidate("plain", True, (), 3.0, 1_000_000, 1e-7, (0.01,), (1.0,), (1.0,), (1.0,))
    quicker = replace(plain, name="freezing", ratios=(1.4,), ratios_high=(1.5,), max_abs=2e-7)
    known = sample_target(slug)
    figures = ErrorFigures(cosine=1.0, snr_db=140.0, quantiles=(1e-8, 1e-7, 2e-7), ulp=3.0)
    deviation = replace(known.deviations[0], figures=figures)
    special = replace(deviation, case="batch=7 zeros", max_abs=0.0, special=True)
    timing = Timing("batch=1024 seed=0", 0.3, 0.05, 6.0, 5.9, 6.1, 9, 2, 0.29, 0.33, 0.049, 0.056)
    return replace(
        known, candidates=(plain, quicker), chosen="freezing", deviations=(deviation, special),
        timings=(*known.timings, timing), spreads=(sample_spread(),), mechanics=sample_mechanics(),
    )  # fmt: skip


def sample_spread(output: int = 0) -> ErrorSpread:
    """Return how 4000 errors lie, 400 of them none."""
    apart = ((-4, -40, 400), (-2, -15, 100), (-2, -14, 2900), (0, -13, 600))
    package = ((-40, 200), (-16, 800), (-15, 2000), (-14, 1000))
    return ErrorSpread(output, 4000, 0.5, apart, package, ((-16, 900), (-15, 2100), (-14, 1000)))


def sample_mechanics() -> Mechanics:
    """Return what a probe found: one input that only the checks refuse."""
    return Mechanics(
        case="batch=1",
        rates=(Rate(8, 12345.6),),
        growth=Growth(10_000, 1.0, 0, 3 << 20, 400 << 20),
        trials=(
            Trial("ids:last=9", "crashed", "refused", "SIGABRT"),
            Trial("missing", "refused", "refused"),
        ),
        commands=("handoff-runner bench RELEASE CASES",),
    )


def full_manifest(*targets: TargetRecord) -> Manifest:
    """Return a manifest with everything that a page can show."""
    effect = PassEffect(
        "fold-batch-norm", "aten", True, 9, 7, 1e-9,
        changes=(ModuleChange("layer1", {"batch_norm": 2}, {"add": 1}),),
    )  # fmt: skip
    manifest = sample_manifest(*(targets or (searched_target(),)))
    captures = (
        CaptureRow("torch.export", True, "", 3, (), 1e-7, 2.5, 1.4, 1.3, 1.5),
        CaptureRow(
            "torch.jit.trace", True, "", 3, ("batch 5: other shape",), 0.5, 0.4, 1.1, 1, 1.2
        ),
        CaptureRow("torch.onnx", False, "onnxscript is not installed"),
    )
    timing = ServedTiming("cpu-avx2", manifest.targets[0].timings[0].case, 5.5, 5.4, 5.6)
    return replace(
        manifest, graphs=sample_graphs(), passes=(effect,), captures=captures,
        served=ServedVersion(4, ("the recipe", "gcc 13 is now 14"), (timing,)),
    )  # fmt: skip


def sample_graphs() -> FoldedGraphs:
    """Return a graph before and after a pass."""
    boxes = (
        FoldedModule("(inputs)", {"x": 1}, (1,)),
        FoldedModule("layer1", {"conv2d": 2, "batch_norm": 2}, (2, 3)),
        FoldedModule("fc", {"linear": 1}, (3,)),
        FoldedModule("(outputs)", {}),
    )
    after = replace(boxes[1], operators={"conv2d": 2, "add": 1})
    compiled = FoldedGraph(18, (boxes[0], after, *boxes[2:]))
    return FoldedGraphs(FoldedGraph(20, boxes), compiled)
