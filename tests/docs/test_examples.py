"""Each block of a document says how it is checked, and is."""

from __future__ import annotations

import dataclasses
import subprocess
import tomllib
from pathlib import Path

import pytest

from handoff.artifacts.delivery.metric import MetricRule
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import OtherTorch, Promotion, Recipe, VerifyPlan
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.recipe.tolerance import Tolerance
from tests.docs.commands import problems_in
from tests.docs.pages import ROOT, Block, all_blocks, blocks_of, code_spans, documents, read_blocks
from tests.docs.running import run_blocks

KINDS = ("run", "python", "file", "recipe", "walk", "walk-on", "as", "needs", "drawing", "rendered")
NEEDS = (
    "minutes", "network", "a server", "a terminal of its own", "S3", "docker", "a cluster",
    "a GPU", "a compiler", "a C++ program of yours", "a pulled release",
    "torchvision, timm and transformers", "the wheel",
    "a signing key",
)  # fmt: skip
BLOCKS = all_blocks()
QUICK = [page for page in documents() if any(b.kind in ("run", "python") for b in blocks_of(page))]


def place(block: Block) -> str:
    return block.place


def of_kind(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds]


def test_every_block_says_how_it_is_checked() -> None:
    assert [block.place for block in BLOCKS if block.kind not in KINDS] == []


@pytest.mark.parametrize("block", of_kind("needs"), ids=place)
def test_what_is_not_run_says_what_it_needs(block: Block) -> None:
    assert block.argument in NEEDS


def test_a_block_without_a_mark_above_it_has_no_kind() -> None:
    texts = ("```sh\nls\n```\n", "<!-- example: run -->\n\n```sh\nls\n```\n", "~~~\nls\n~~~\n")
    for text in texts:
        (block,) = read_blocks(ROOT / "README.md", text)
        assert block.kind == ""
    (block,) = read_blocks(ROOT / "README.md", "<!-- example: file a.py -->\n```python\n1\n```\n")
    assert (block.kind, block.argument, block.text) == ("file", "a.py", "1\n")


@pytest.mark.parametrize("page", QUICK, ids=lambda page: page.name)
def test_a_page_s_quick_blocks_run_in_its_order(page: Path, tmp_path: Path) -> None:
    chosen = [block for block in blocks_of(page) if block.kind in ("file", "run", "python")]
    ran = run_blocks(chosen, tmp_path, limit_s=580)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr.count("== docs/") == len(chosen)


@pytest.mark.parametrize("block", of_kind("recipe"), ids=place)
def test_a_recipe_is_one_that_the_reader_of_recipes_takes(block: Block, tmp_path: Path) -> None:
    from handoff.tasks.optimize.passes import PASSES

    path = tmp_path / "recipe.toml"
    path.write_text(block.text, encoding="utf-8")
    for chosen in read_recipe(path).passes:
        PASSES[chosen.name](chosen.parameters)
    path.write_text(block.text + "\n[nowhere]\n", encoding="utf-8")
    with pytest.raises(UsageProblem, match="no other keys"):
        read_recipe(path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "recipes").iterdir()), ids=lambda path: path.stem
)
def test_a_recipe_by_purpose_is_one_that_a_release_takes_and_the_page_names(path: Path) -> None:
    from handoff.tasks.optimize.recipe_names import require_known_names

    require_known_names(read_recipe(path))
    assert f"(../examples/recipes/{path.name})" in (ROOT / "docs" / "recipe.md").read_text()


def test_the_page_of_recipes_shows_every_key_of_one() -> None:
    page = ROOT / "docs" / "recipe.md"
    first, *others = [tomllib.loads(b.text) for b in blocks_of(page) if b.kind == "recipe"]
    # By default there is none.
    shown = {"metric": next(one["metric"] for one in others if "metric" in one), **first}
    assert set(shown) == names_of(Recipe)
    assert set(shown["metric"]) == names_of(MetricRule)
    for table, kind in (
        ("verify", VerifyPlan), ("search", Search), ("promotion", Promotion), ("torch", OtherTorch),
    ):  # fmt: skip
        assert set(shown[table]) == names_of(kind), table
    assert set(shown["tolerance"]["float32"]) == names_of(Tolerance)


def names_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(
    "page",
    [ROOT / "docs" / "first-release.md", ROOT / "infra" / "runner" / "README.md"],
    ids=lambda page: page.name,
)
def test_a_page_builds_the_runner_as_a_release_does(page: Path) -> None:
    from handoff.tasks.probe.build import FLAGS, link_flags

    (block,) = [block for block in blocks_of(page) if "-o handoff-runner" in block.text]
    words = block.text.split()
    assert {flag for flag in FLAGS if not flag.startswith("-W")} <= set(words)
    for_linking = ("-l", "-Wl,--")
    libraries = [word for word in words if word.startswith(for_linking)]
    assert libraries == [flag for flag in link_flags() if flag.startswith(for_linking)]


@pytest.mark.parametrize("block", of_kind("as"), ids=place)
def test_a_repeated_block_is_word_for_word_the_other_page_s(block: Block) -> None:
    page = block.page.parent / block.argument
    others = [(other.language, other.text) for other in blocks_of(page) if other.kind != "as"]
    assert (block.language, block.text) in others


@pytest.mark.parametrize("block", of_kind("needs", "walk", "walk-on", "run", "as"), ids=place)
def test_a_block_has_a_sound_syntax_and_commands_that_exist(block: Block) -> None:
    if block.language == "python":
        compile(block.text, block.place, "exec")
    elif block.language == "sh":
        read = subprocess.run(
            ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
        )
        assert read.returncode == 0, read.stderr
        assert list(problems_in(block.text)) == []
    else:
        assert block.language == "cpp"


@pytest.mark.parametrize("block", of_kind("drawing"), ids=place)
def test_a_drawing_has_no_language_and_holds_no_command(block: Block) -> None:
    assert block.language == ""
    starts = ("handoff ", ".venv/", "make ", "$ ")
    assert [line for line in block.text.splitlines() if line.strip().startswith(starts)] == []


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_a_page_s_text_exist(page: Path) -> None:
    spans = [span for span in code_spans(page) if span.startswith(("handoff ", "make "))]
    assert [problem for span in spans for problem in problems_in(span)] == []


@pytest.mark.parametrize(
    ("command", "problems"),
    [
        (".venv/bin/handoff relaese delivery", ["main has no command relaese"]),
        ("$H release delivery --fast # quickly", ["release has no option --fast"]),
        ("there $H keys tell > file", ["keys has no command tell"]),
        ("eval \"$(handoff up --print-everything)\"", ["up has no option --print-everything"]),
        ("handoff down && handoff upp; handoff lsit", ["main has no command upp",
                                                       "main has no command lsit"]),
        ("make tests", ["make tests: no such target"]),
        ("handoff release delivery --json | jq --raw-output .version", []),
        ("handoff pull a@1 --to b \\\n  --for cpu-avx2", []),
    ],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_told(command: str, problems: list[str]) -> None:
    assert list(problems_in(command)) == problems
