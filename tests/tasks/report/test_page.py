"""The report of a release: one page that needs nothing else, its verdict first, all escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.release.culprit import Culprit
from handoff.artifacts.release.evidence import (
    EarlierMeasurement,
    Finding,
    FoldedGraph,
    FoldedGraphs,
    FoldedModule,
    ModuleChange,
)
from handoff.artifacts.release.manifest import Manifest, parse_manifest
from handoff.tasks.report.numbers import format_percent
from handoff.tasks.report.page import environment, evidence
from tests.artifacts.recipe.gpu_generations import for_gpus
from tests.artifacts.samples import (
    sample_manifest,
    sample_metric,
    sample_source_check,
    sample_target,
)
from tests.tasks.report.samples import Page, full_manifest, sample_spread, searched_target

GOLDEN = Path(__file__).parents[2] / "golden" / "manifest-1.json"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> $\\frac{"


def page_of(manifest: Manifest) -> str:
    (text,) = evidence(manifest).values()
    return text.decode()


@pytest.fixture(scope="module")
def text() -> str:
    """Return the page of a record that holds everything; pages are read, never changed."""
    return page_of(full_manifest())


def test_the_report_is_one_page_and_the_same_each_time(text: str) -> None:
    assert set(evidence(full_manifest())) == {"report.html"}
    assert page_of(full_manifest()) == text
    assert len(text.encode()) < 600_000


def test_the_page_needs_nothing_from_elsewhere(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert {"h1", "table", "svg", "style", "nav", "main"} <= set(page.tags)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_links_lead_to_what_is_there_and_no_id_stands_twice(text: str) -> None:
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    referred = [address.removeprefix("#") for address in page.addresses]
    referred += re.findall(r"url\(#([^)]*)\)", text)
    assert set(referred) <= set(page.ids)


def test_each_picture_has_words_for_it(text: str) -> None:
    page = Page(text)
    assert len(page.pictures) == 5, "graph, spread, inputs, latency, search"
    for picture in page.pictures:
        assert picture["role"] == "img"
        title = picture["aria-labelledby"]
        assert re.search(rf'<title id="{title}">[^<]{{20,}}</title>', text)


def test_the_verdict_comes_first_and_then_what_it_rests_on(text: str) -> None:
    words = Page(text).words
    accepted = "Its numbers and its behaviour without Python are accepted"
    sentence = f"{accepted}; released for cpu-avx2."
    assert words.index("toy Accepted") < words.index(sentence)
    words = words[words.index(sentence) :]
    order = (
        "Lineage", "0123abcd", "changed since version 4, then in production",
        "the recipe, gcc 13 is now 14", "unused-input", "module.py:7", "What captures it",
        "1.40 (1.30 to 1.50)", "2 of 3", "batch 5: other shape", "onnxscript is not installed",
        "torch.export captures it and is right on all 3 other inputs", "fold-batch-norm",
        "Ordinary inputs: tolerance needed, and agreed", "Special inputs", "Latency",
        "version 4, when it was released", "5.50 (5.40 to 5.60)",
        "6.00 (5.90 to 6.10)", "freezing", "8 threads 12,346 calls/s", "ids:last=9",
        "handoff verify release",
    )  # fmt: skip
    # What stands at the top stands again where it belongs.
    places = [words.index(part, words.index("Lineage")) for part in order]
    assert places == sorted(places)
    assert "grew by 3.0 MiB" in words
    assert "50 ms (49 to 56 ms)" in words


def test_the_first_screen_says_how_fast_how_wrong_and_on_which_inputs(text: str) -> None:
    words = Page(text).words
    first = words[: words.index("Inputs and outputs")]
    at = [first.index(name) for name in ("speed 6.00×", "largest error", "inputs compared 2")]
    assert at == sorted(at)
    assert "1 of ordinary values; 1 of special values" in first
    assert "commit 0123abcd" in first
    assert re.search(r"record [0-9a-f]{12} ", first)


def test_the_speed_at_the_top_is_the_delivered_examples_and_unknown_where_it_is() -> None:
    target = searched_target()
    large = target.timings[-1]
    example = replace(
        large, case="batch=8 example=0", speedup=2.0, speedup_low=1.9, speedup_high=2.1
    )
    timed = replace(target, timings=(example, large))
    words = Page(page_of(full_manifest(timed))).words
    assert "speed 2.00× eager's speed at batch=8, as delivered (1.90 to 2.10); 6.00× at " in words
    unclear = replace(example, speedup_low=0.2, speedup_high=100.0, others=1.5)
    words = Page(page_of(full_manifest(replace(target, timings=(unclear, large))))).words
    assert "speed not known 0.20 to 100 times eager's speed at batch=8, as delivered" in words
    assert "while other work used 1.5 processors" in words


def test_no_line_of_a_tile_ends_within_a_number_and_what_else_it_says_stays_text(
    text: str,
) -> None:
    assert '<b class="whole">1e-06</b>' in text[text.index("<dl") : text.index("</dl>")]
    shown = environment().from_string("{{ given|unbroken }}").render(given="<i>9.3e-10</i> of e-5")
    assert shown == '&lt;i&gt;<b class="whole">9.3e-10</b>&lt;/i&gt; of e-5'


def test_special_inputs_do_not_blur_the_error_on_ordinary_ones() -> None:
    target = searched_target()
    usual, special = target.deviations
    large = replace(special, max_abs=1.95e-3, required_rtol=0.5)
    words = Page(page_of(full_manifest(replace(target, deviations=(usual, large))))).words
    ordinary = words[words.index("Ordinary inputs:") : words.index("Special inputs")]
    assert "1.95e-03" not in ordinary
    assert "1.95e-03" in words[words.index("Special inputs") :]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "0 %"), (0.04, "<0.1 %"), (7.84, "7.8 %"), (99.6, "100 %"), (3712.0, "3,712 %")],
)
def test_shares_have_the_digits_that_tell_something(share: float, expected: str) -> None:
    assert format_percent(share) == expected


def test_a_refusal_says_why_before_anything_else() -> None:
    refused = replace(
        searched_target(),
        accepted=False,
        reasons=tuple(f"tanh <is> wrong by {n}" for n in range(3, 18)),
    )
    words = Page(page_of(full_manifest(searched_target("cpu-avx512"), refused))).words
    assert "Nothing was released: the package for cpu-avx2 was refused." in words
    assert "Further reasons (14)" in words
    assert "and 2 more" in words
    assert words.index("tanh <is> wrong by 3") < words.index("largest error")
    assert "released for" not in words


def test_a_package_that_is_wrong_on_special_inputs_alone_says_so_beside_its_small_error() -> None:
    usual, special = searched_target().deviations
    wrong = replace(special, reasons=("NaN where eager has numbers",))
    target = replace(searched_target(), accepted=False, deviations=(usual, wrong))
    words = Page(page_of(full_manifest(target))).words
    assert "on ordinary inputs" in words
    assert "wrong on special ones" in words
    assert "wrong on special ones" not in Page(page_of(full_manifest(searched_target()))).words


def test_a_refusal_names_the_operator_its_line_and_the_script_in_a_table() -> None:
    found = Culprit("tanh (aten.tanh.default)", "small.py:28", script="/builds/repeat.py")
    refused = replace(searched_target(), accepted=False, reasons=("tanh is wrong",), culprit=found)
    words = Page(page_of(full_manifest(refused))).words
    first = words[: words.index("Inputs and outputs")]
    assert "operator tanh (aten.tanh.default) line small.py:28" in first
    assert "reproduce it /builds/repeat.py" in first
    assert "right without" not in first


def test_what_to_do_follows_why_at_once_and_the_script_is_named_once() -> None:
    found = Culprit("tanh (aten.tanh.default)", "small.py:28", script="/builds/repeat.py")
    why = "tanh is wrong. The script /builds/repeat.py reproduces it."
    refused = replace(searched_target(), accepted=False, reasons=(why,), culprit=found)
    words = Page(page_of(full_manifest(refused))).words
    first = words[: words.index("Inputs and outputs")]
    assert "Why cpu-avx2 is refused tanh is wrong. What to do: " in first
    assert first.index("What to do") < first.index("reproduce it /builds/repeat.py")
    assert first.count("/builds/repeat.py") == 1


def test_sizes_that_are_declared_and_were_not_compared_are_on_the_first_screen() -> None:
    first = sample_manifest()
    (target,) = first.targets
    case = replace(target.deviations[0], case="batch=17 seed=0")
    words = Page(page_of(replace(first, targets=(replace(target, deviations=(case,)),)))).words
    assert "not compared batch above 17 declared: batch to 1024" in words
    whole = replace(target, deviations=(case, replace(case, case="batch=1024 seed=0")))
    words = Page(page_of(replace(first, targets=(whole,)))).words
    assert "inputs compared 2 2 of ordinary values; 0 of special values; batch 17, 1024" in words
    assert "batch above" not in words


def test_a_package_that_nobody_ran_is_no_accepted_one() -> None:
    waiting = replace(
        sample_target("cuda-sm90"), accepted=False, unverified="no GPU here", deviations=(),
        timings=(), skipped=(),
    )  # fmt: skip
    words = Page(page_of(sample_manifest(waiting))).words
    assert "Built, not yet verified" in words
    assert "cuda-sm90 was run nowhere" in words
    assert "Nothing was timed" in words
    assert "No output was compared" in words
    assert "source level" not in words


def test_what_was_seen_of_kernels_sources_is_shown_with_what_it_does_not_show() -> None:
    waiting = replace(
        sample_target("cuda-sm90"), accepted=False, unverified="no GPU here", deviations=(),
        timings=(), skipped=(), source_checked=sample_source_check(),
    )  # fmt: skip
    words = Page(page_of(sample_manifest(waiting))).words
    assert "built, not yet verified, kernels checked at source level" in words
    assert "The sources of the kernels for cuda-sm90 were run without a GPU." in words
    assert "the sources of 1 kernel (1 more were launched by no case) were run by" in words
    assert "at 1 of the plan's 4 cases" in words
    assert "not shown by that: the machine code" in words
    assert str(digest_bytes(b"add")) in words


def test_what_is_taken_over_from_another_package_is_not_shown_as_measured_anew() -> None:
    earlier = EarlierMeasurement(digest_bytes(b"library"), "2026-11-23 14:00+00:00")
    record = replace(sample_target("cpu-avx2"), taken_over=earlier)
    words = Page(page_of(sample_manifest(record))).words
    assert (
        f"Not measured again: timings, memory and hostile inputs are those of model.so "
        f"{earlier.library.short}" in words
    )
    assert "2026-11-23" in words
    assert "Not measured again" not in Page(page_of(sample_manifest())).words


def test_what_a_delivery_says_stays_text() -> None:
    manifest = full_manifest()
    graph = FoldedGraph(2, (FoldedModule(HOSTILE, {HOSTILE: 1}),))
    effect = replace(manifest.passes[0], changes=(ModuleChange(HOSTILE, {HOSTILE: 1}, {}),))
    target = manifest.targets[0]
    deviations = tuple(replace(one, case=HOSTILE) for one in target.deviations)
    timings = tuple(replace(one, case=HOSTILE) for one in target.timings)
    hostile = replace(
        manifest,
        lineage=replace(manifest.lineage, training_run=HOSTILE, repository="javascript:alert(1)"),
        captures=(replace(manifest.captures[0], wrong=(HOSTILE,)),),
        findings=(Finding(HOSTILE, "limit", HOSTILE, HOSTILE, HOSTILE),),
        passes=(effect,),
        graphs=FoldedGraphs(graph, graph),
        targets=(
            replace(
                target,
                deviations=deviations,
                timings=timings,
                notes=(HOSTILE,),
                taken_over=EarlierMeasurement(digest_bytes(b"library"), HOSTILE),
            ),
        ),
    )
    page = Page(page_of(hostile))
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert page.words.count("<script>alert(1)</script>") > 8


def test_verdicts_are_coloured_and_say_so_in_words() -> None:
    target = searched_target()
    wrong = replace(target.deviations[0], reasons=("wrong by 3",))
    refused = replace(target, accepted=False, reasons=("wrong",), deviations=(wrong,))
    text = page_of(sample_manifest(refused))
    assert '<td class="bad" data-column="verdict">refused</td>' in text
    assert '<td class="bad" data-column="accepted">no</td>' in text
    assert 'class="good" data-column="verdict">accepted</td>' not in text


def test_a_record_of_before_these_pictures_still_makes_a_page() -> None:
    words = Page(page_of(parse_manifest(GOLDEN.read_bytes()))).words
    assert "There is no picture of the graph" in words
    assert "How the errors lie was not counted" in words
    assert "2.00 (1.90 to 2.10)" in words


def test_many_outputs_and_targets_still_make_a_small_page() -> None:
    many = replace(searched_target(), spreads=tuple(sample_spread(place) for place in range(8)))
    targets = [replace(many, slug=slug) for slug in ("cpu-avx2", "cpu-avx512", "cpu-amx", "cpu")]
    text = page_of(full_manifest(*targets))
    assert len(text.encode()) < 600_000
    words = Page(text).words
    assert "The errors of 6 more outputs are not drawn" in words
    assert "Of further targets the report has tables" in words


@pytest.mark.parametrize("size", [float("inf"), 0.0, 1e-300, 1e300])
def test_errors_of_any_size_make_a_page(size: float) -> None:
    target = searched_target()
    figures = target.deviations[0].figures
    assert figures is not None
    odd = replace(
        target.deviations[0], max_abs=size, required_rtol=size, rmse_package=size,
        figures=replace(figures, quantiles=(0.0, size, size)),
    )  # fmt: skip
    spread = replace(sample_spread(), apart=((-40, -40, 9),), package=((16, 9),), eager=((-40, 9),))
    shown = replace(target, deviations=(odd,), spreads=(spread,))
    assert "tolerance needed" in page_of(full_manifest(shown))


def test_the_metric_stands_beside_the_numbers_with_what_was_agreed() -> None:
    target = replace(sample_target("cpu-avx2"), metric=sample_metric(0.965))
    text = page_of(sample_manifest(target))
    words = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "The delivery's metric" in words or "The delivery&#39;s metric" in words
    assert "top-1 output0 800 0.97 0.965 0.0050 0.0000 to 0.0100, 0.95 sure each 0.0100" in words
    assert "top-1 0.965 0.97 by eager" in words
    assert "s metric" not in page_of(sample_manifest(sample_target("cpu-avx2")))


def test_a_package_for_several_gpus_says_which_of_them_has_not_run_it() -> None:
    words = Page(page_of(sample_manifest(for_gpus(90, untried=(80,))))).words
    note = "not yet verified for compute capability 8.0"
    assert f"accepted, {note}" in words
    assert f"cuda-sm80+sm90 is {note}." in words
    assert "compute capability 8.0 and 9.0" in words, "what it is for"
    whole = Page(page_of(sample_manifest(for_gpus(80, 90)))).words
    assert "not yet verified" not in whole
