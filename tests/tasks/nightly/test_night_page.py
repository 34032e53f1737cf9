"""The night for people: everything that happened is shown, and what it quotes stays text."""

from __future__ import annotations

import re
from dataclasses import replace

from handoff.artifacts.night import NightRow
from handoff.tasks.nightly.night_page import render_night, render_night_page, text_table
from handoff.tasks.nightly.trends import trends
from tests.artifacts.nights import busy_night, compared, month, night, unchanged
from tests.artifacts.nights import figures as package
from tests.tasks.report.samples import Page


def test_the_table_for_a_log_lines_up_and_tells_why() -> None:
    lines = text_table(busy_night()).splitlines()
    assert lines[0] == (
        "Night of 2026-11-20: 14 models in 1 h 12 min: 1 replaced, 1 kept, 8 unchanged, 1 skipped, "
        "1 refused, 1 failed, 1 crashed"
    )
    head = next(line for line in lines if line.startswith("model"))
    resnet = next(line for line in lines if line.startswith("resnet18 "))
    assert resnet.index("cpu-avx512") == head.index("target")
    assert resnet.index("1.12 (1.10 to 1.15)") == head.index("new over old")
    assert "6 -> 7" in resnet
    assert "bert: the process was ended by signal 9" in lines
    assert lines[-1].startswith("unchanged: model-a, model-b")
    assert text_table(busy_night()).isascii()


def test_what_went_wrong_stands_first() -> None:
    found = re.findall(r"^\| ([a-z0-9-]+) \| ", render_night(busy_night()), re.M)
    assert found == [
        "model", "---", "bert", "gpt2", "whisper-encoder", "resnet18", "recommender", "unet",
    ]  # fmt: skip


def test_what_was_not_measured_is_marked_and_the_mark_explained() -> None:
    text = render_night(busy_night())
    assert r"3.20\* → 3.10 (3.01 to 3.22)\*" in text
    assert r"\* as its record has it, since it was not run here" in text
    resnet = busy_night().row("resnet18")
    assert resnet is not None
    measured = night(1, resnet)
    assert "as its record has it" not in render_night(measured)
    assert "as its record has it" not in text_table(measured)


def test_what_came_from_a_cache_has_no_seconds_of_a_compiler() -> None:
    new = replace(package(7, 1.5), compile_s=0.006, reused="package")
    text = render_night(night(1, compared("replaced", package(6, 1.4), new, "better")))
    assert "| 33 s → package cached |" in text
    (found,) = night(1, compared("replaced", package(6, 1.4), new, "better")).rows
    assert [one.compiled_s for one in found.served_figures] == [None]


def test_a_night_on_which_nothing_happened_is_one_line_and_the_names() -> None:
    quiet = night(1, unchanged(package(6, 1.4)), hours=1.5 / 3600)
    assert text_table(quiet) == (
        "Night of 2026-10-21: 1 model in 1.5 s: 1 unchanged\n"
        "compiler g++ 12.2.0, torch 2.15.0\n\nunchanged: resnet18\n"
    )
    assert "|" not in render_night(quiet)
    assert text_table(replace(night(1), toolchain={})) == (
        "Night of 2026-10-21: 0 models in 1 h 12 min\n"
    )


def test_the_page_needs_nothing_from_elsewhere_and_has_the_trends() -> None:
    nights = (*month(), busy_night())
    drawn = dict(trends(nights, ["resnet18", "recommender"]))
    assert list(drawn) == ["trend-resnet18.svg", "trend-recommender.svg"]
    text = render_night_page(busy_night(), drawn)
    page = Page(text)
    assert page.open == []
    assert page.tags.count("svg") == 2
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert "Drawn in" not in text
    for outcome in ("refused", "failed", "crashed"):
        assert f'<td class="bad">{outcome}</td>' in text
    assert '<td class="good">replaced</td>' in text


def test_what_an_error_quotes_stays_text() -> None:
    why = "<script>alert(1)</script> [x](javascript:alert(1)) | **bold** `code` <img src=x>\n# no"
    text = render_night_page(night(1, NightRow("toy", "failed", why=why)), {})
    page = Page(text)
    assert not {"script", "img", "code", "a"} & set(page.tags)
    assert page.tags.count("h1") == 1
    assert "**bold**" in text


def test_a_version_that_is_kept_back_is_shown_again_each_night() -> None:
    row = replace(unchanged(package(6, 1.4)), new=7, why="version 7 is kept back: slower")
    assert "resnet18: version 7 is kept back: slower" in text_table(night(1, row))
    assert "is kept back" not in text_table(night(1, unchanged(package(6, 1.4))))


def test_what_the_toolchain_breaks_stands_on_the_page_and_in_the_log() -> None:
    sentence = "cpu-avx2: since torch 2.14.0, g++ 12, these are wrong: amax:int8"
    one = replace(night(0), conformance=(sentence,))
    assert sentence in text_table(one)
    assert "The toolchain's operators" in render_night(one)
    assert "amax:int8" in render_night_page(one, {})
    assert "The toolchain's operators" not in render_night(night(0))


def test_each_model_leads_to_its_own_run_where_a_server_keeps_it() -> None:
    page = "http://127.0.0.1:4200/runs/flow-run/0197"
    row = replace(compared("replaced", package(6, 1.4), package(7, 1.5), "better"), run=page)
    text = render_night(night(1, row))
    assert f"| [{row.model}]({page}) | replaced |" in text
    assert f"- **[{row.model}]({page})**:" in text
    # An id alone, or what isn't an address, is no link.
    for other in ("0197", "javascript:alert(1)", "http://a/)[x](http://b"):
        assert "](" not in render_night(night(1, replace(row, run=other)))
