"""What others say is shown, and does nothing: on a terminal, in a log, on a page, in MLflow."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import UsageProblem, error_from_record
from handoff.artifacts.mlflow.description import describe_version, link_run
from handoff.artifacts.mlflow.tags import run_parameters, run_tags
from handoff.artifacts.printable import markdown_text, one_line, printable, printable_json
from handoff.artifacts.release.evidence import Finding
from handoff.artifacts.release.statement import Claim
from handoff.infra.terminal.console import print_findings, print_json, print_table
from handoff.infra.terminal.output import JsonFormatter, OneLineFormatter, echo, styled
from handoff.tasks.report.page import environment
from tests.artifacts.samples import write_release

# Escape (clear the screen, a title, a link), bell, carriage return, backspace, C1's CSI, marks of
# direction, no width, a byte order mark, a tag, private use, half of a pair, nobody's character.
HOSTILE = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\x", "\x07", "\r", "\b", "\x9b31m",
    "\u202e", "\u2066", "\u200f", "\u200b", "\u200d", "\ufeff", "\U000e0041", "\ue000", "\ud800",
    "\U000effff", "\x7f", "\x00", "\u2028",
)  # fmt: skip
PLAIN = "Æsir ✓ → 日本語 µs ± 3×4 é ñ\u00a0x"


def is_harmless(text: str) -> bool:
    return all(c in "\n\t" or c.isprintable() or unicodedata.category(c) == "Zs" for c in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_printed_is_written_out(text: str) -> None:
    assert not is_harmless(text)
    for shown in (printable(f"a{text}b"), one_line(f"a{text}b"), markdown_text(f"a{text}b")):
        assert is_harmless(shown)
        assert "\n" not in shown
        assert shown != "ab"
    assert printable(PLAIN) == one_line(PLAIN) == PLAIN
    assert printable("two\n\tlines") == "two\n\tlines"
    assert one_line("two\n\tlines") == "two\\n\\tlines"


@given(st.text(st.characters()))
def test_any_text_becomes_printable_and_stays_so(text: str) -> None:
    shown = printable(text)
    assert is_harmless(shown)
    assert printable(shown) == shown
    assert "\n" not in one_line(text)


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner, max_size=3)))
def test_json_says_the_same_in_printable_characters(value: object) -> None:
    shown = printable_json(json.dumps(value, ensure_ascii=False))
    assert is_harmless(shown)
    assert json.loads(shown) == value


@given(st.text(st.sampled_from("\\`*_[]<>|#~&!(): \nab"), max_size=30))
def test_text_in_markdown_stays_text(text: str) -> None:
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(
        f"- x {markdown_text(text)}\n"
    )  # fmt: skip
    for mark in ("<a ", "<em>", "<strong>", "<code>", "<img", "<table>", "<h1>", "<pre>"):
        assert mark not in rendered


def test_a_refusal_and_its_record_hold_nothing_that_is_not_printed() -> None:
    text = "".join(HOSTILE)
    error = UsageProblem(text, expected=text, got=f"{text}\nsecond", remedy=text, where=text)
    assert is_harmless(str(error))
    assert "\n" not in error.where
    assert str(error_from_record(error.as_record())) == str(error)
    assert (
        str(UsageProblem("a", expected="b", got=PLAIN, remedy="c"))
        == f"a: expected b, got {PLAIN}. C"
    )


def test_no_way_in_which_a_command_prints_lets_it_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "".join(HOSTILE)
    echo(text)
    echo("  ", styled(text), text, err=True)
    print_json({text: [text, {"author": text}]})
    print_findings([Finding("unused-input", "note", text, text, text)])
    print_table(text, ("a", text), [(text, text), ("[red]x[/red]", "[link=http://evil]y[/link]")])
    printed = "".join(capsys.readouterr())
    assert is_harmless(printed)
    # Neither is markup of rich's taken for more than text.
    assert "[link=" in printed
    echo(PLAIN)
    assert PLAIN in capsys.readouterr().out


def test_a_log_has_one_line_for_each_record() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLineFormatter("%(message)s"))
    record = logging.LogRecord("x", logging.INFO, "f", 1, "by %s", ("a\nreleased\x1b[2J",), None)
    handler.emit(record)
    assert stream.getvalue() == "by a\\nreleased\\x1b[2J\n"


def test_a_record_in_json_is_one_line_that_says_the_same() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    hostile = 'a"b\nreleased\x1b[2J\u202e'
    handler.emit(logging.LogRecord("x", logging.WARNING, "f", 1, "by %s", (hostile,), None))
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert is_harmless(line)
    assert json.loads(line)["message"] == f"by {hostile}"


def test_a_page_shows_what_a_record_says_and_does_nothing_of_it() -> None:
    template = environment().from_string("<p title='{{ text }}'>{{ text }}</p>")
    page = template.render(text="<script>x</script>' onload='" + "".join(HOSTILE))
    assert is_harmless(page)
    assert "<script>" not in page
    assert "' onload='" not in page
    assert environment().from_string("{{ text }}").render(text=PLAIN) == PLAIN


def test_mlflows_tags_and_descriptions_hold_nothing_of_it(tmp_path: Path) -> None:
    # Half of a surrogate pair is in no record: UTF-8 has none.
    own = "".join(HOSTILE).replace("\ud800", "")
    text = own + "`|x](http://evil)<img src=x>\n# released"
    lineage = Lineage(text, "0123abc", text, text, text)
    manifest = replace(write_release(tmp_path), lineage=lineage)
    claim = Claim(manifest.model, 1, manifest.digest, {}, digest_bytes(b"parts"), {}, None)
    release = digest_bytes(b"release")
    for shown in (run_tags(manifest, claim, release), run_parameters(manifest)):
        assert all(is_harmless(value) and "\n" not in value for value in shown.values())
    from handoff.artifacts.mlflow.description import RunAddress

    description = describe_version(
        manifest, claim, release, RunAddress("1", "2"), report="report.html", training=None,
        flow_run=f"https://prefect/{text}",
    )  # fmt: skip
    assert is_harmless(description)
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(description)
    assert 'href="http://evil' not in rendered
    assert "<img" not in rendered
    assert "<h1>" not in rendered
    assert link_run("https://prefect.example:4200/runs/flow-run/abc-1") == (
        "[abc-1](https://prefect.example:4200/runs/flow-run/abc-1)"
    )


def test_every_command_prints_by_the_one_place() -> None:
    root = Path(__file__).parents[2] / "infra"
    # The first is the place itself. The second is a program of its own, for containers without us,
    # and the others are what steps run in: what they print goes to their log.
    allowed = {"output.py", "prepare.py", "worker.py", "forkserver.py"}
    prints = (
        "click.echo", "click.secho", "click.prompt", "click.confirm", "print(", "sys.stdout.w",
        "sys.stderr.w", "traceback.print",
    )  # fmt: skip
    found = [
        f"{path.name}:{number}"
        for path in root.rglob("*.py")
        if path.name not in allowed
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(call in line.replace("console.print(", "").replace(".print(table)", "")
               for call in prints)
    ]  # fmt: skip
    assert found == []
