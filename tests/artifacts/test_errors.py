"""Sentences of refusals: what was expected is said once, and what to do goes by the cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import CONTRACT_FILE, read_contract
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem, parse_message
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.toml.verify: expected 1 to 2, got 0", ("a.toml.verify", "1 to 2", "0")),
        ("expected a name, got 'x, got y'", ("", "a name", "'x, got y'")),
        ("expected TOML, got: what: a line", ("", "TOML", "what: a line")),
        ("something else", ("", "", "something else")),
    ],
)
def test_a_message_is_told_in_its_parts(text: str, parts: tuple[str, str, str]) -> None:
    assert parse_message(text) == parts


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ("rows.0: expected a text, got 7", "got rows.0: 7 instead of a text. Look"),
        ("cpu: it ended: expected a result, got SIGKILL; its last output: x. Read the log; "
         "gpu: it ended: expected a result, got nothing. Run it again",
         "got cpu: it ended: SIGKILL instead of a result; its last output: x. Read the log; "
         "gpu: it ended: nothing instead of a result. Run it again. Look"),
        ("nothing that was expected", "got nothing that was expected. Look"),
        ("7, not 8", "got 7, not 8. Look"),
        ("one. See x.py.\nother, rtol...", "got one. See x.py; other, rtol.... Look"),
    ],
)  # fmt: skip
def test_what_was_expected_is_said_once_where_a_message_holds_others(
    got: str, message: str
) -> None:
    error = UsageProblem("it can't be read", expected="a record", got=got, remedy="look")
    assert str(error).startswith("it can't be read: expected a record, got ")
    assert message in str(error)
    assert str(error).count("expected ") == 1
    # The part itself stays as it was found, for programs.
    assert error.got == got


@pytest.mark.parametrize(
    ("recipe", "message", "mended"),
    [
        ("targtes = ['cpu']", "got 'targtes'. Did you mean targets?", "targets = ['cpu']"),
        ("[verify]\nseeds = 0", "not valid at verify: expected 1 to 100 seeds, got 0. Fix",
         "[verify]\nseeds = 1"),
        ("targets = ['CUDA-sm90']", "Did you mean cuda-sm90?", "targets = ['cuda-sm90']"),
        ("passes = ['cpu-attention']", "Write each pass as [[passes]] with name = \"cpu-",
         '[[passes]]\nname = "cpu-attention"'),
        ("targets = ['gpu']", "cuda-sm90 an H100 or H200", "targets = ['cuda-sm90']"),
        ("targets = ['cuda-sm75']", "cuda-sm80 is an A100", "targets = ['cuda-sm80']"),
        ("[tolerance]\natol = 1e-6", "such as [tolerance.float32]",
         "[tolerance.float32]\natol = 1e-6"),
        ("targets = ['cpu-avx9']", "got 'cpu-avx9'. Did you mean cpu-avx2?",
         "targets = ['cpu-avx2']"),
        ("[tolerance.float32]\nrtoll = 1", "not valid at tolerance.float32: expected no other",
         "[tolerance.float32]\nrtol = 0.1\natol = 0.1"),
        ("[search]\ncandidates = ['freezing']", "got none. Write seconds = 600 under [search]",
         "[search]\nseconds = 600\ncandidates = ['freezing']"),
        ("targets = [", "recipe.toml:1:12: the recipe is no TOML: expected TOML, got Invalid value",
         "targets = ['cpu']"),
        ("\ntargets = ['cpu'\n[verify]", "recipe.toml:3:1: the recipe is no TOML: expected TOML",
         "targets = ['cpu']"),
    ],
)  # fmt: skip
def test_a_recipes_mistake_is_one_sentence_and_what_it_says_mends_it(
    recipe: str, message: str, mended: str, tmp_path: Path
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe)
    with pytest.raises(UsageProblem) as caught:
        read_recipe(path)
    sentence = str(caught.value)
    assert message in sentence
    assert sentence.count("expected") == 1
    assert "\n" not in sentence
    path.write_text(mended)
    assert isinstance(read_recipe(path), Recipe)


def test_a_contracts_mistake_is_told_with_its_place_and_once(tmp_path: Path) -> None:
    (tmp_path / CONTRACT_FILE).write_text('format = 1\n[model]\nname = "toy"\n[[inputs]]\nname = 3')
    with pytest.raises(DeliveryUnreadable) as caught:
        read_contract(tmp_path)
    sentence = str(caught.value)
    assert "not a delivery contract, at inputs[0].name: expected a string, got 3." in sentence
    assert sentence.count("expected") == 1
