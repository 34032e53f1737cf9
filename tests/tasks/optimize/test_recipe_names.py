"""A recipe's wrong names are found from the recipe and the contract alone."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import DeliveryContract, ModelSection, Structure
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.recipe_names import declared_passes, require_known_names

PLAIN = DeliveryContract(ModelSection("toy"), (TensorSpec("x", "float32", (4,)),))
NAMED = DeliveryContract(
    ModelSection("toy"), (TensorSpec("x", "float32", (4,)),),
    structure=Structure(outputs=("['scores']", "['bounds'][0]")),
)  # fmt: skip
LOOSE = Tolerance(1e-2, 1e-2)
EXTENSION = "ours@sha256:" + "0" * 64


# Values that each pass takes.
GIVEN = {
    "lower-precision": {"dtype": "bfloat16", "operators": "linear, matmul,between"},
    "quantize-int8": {"activations": "static", "keep": "0.25"},
    "prune-low-influence": {"share": "0.001"},
    "replace-operator": {"old": "silu.default", "new": "relu.default"},
}


def test_what_is_read_of_the_passes_is_what_they_say() -> None:
    assert {name: dict(one.parameters) for name, one in declared_passes().items()} == {
        name: dict(one.parameters) for name, one in PASSES.items()
    }
    assert {name: one.does for name, one in declared_passes().items()} == {
        name: inspect.getdoc(one) for name, one in PASSES.items()
    }
    assert {name: dict(one.forms) for name, one in declared_passes().items()} == {
        name: dict(one.forms) for name, one in PASSES.items()
    }


def test_all_passes_and_tolerances_that_there_are_pass() -> None:
    passes = tuple(PassChoice(name, GIVEN.get(name, {})) for name in PASSES)
    require_known_names(Recipe(passes=passes, tolerance={"float32": LOOSE}), PLAIN)
    require_known_names(Recipe(tolerance={"output0": LOOSE}), PLAIN)
    require_known_names(Recipe(tolerance={"scores": LOOSE, "bounds_0": LOOSE}), NAMED)


def test_a_pass_that_is_nobodys_is_reported_with_those_that_there_are() -> None:
    recipe = Recipe(passes=(PassChoice("fold-batchnorm"),))
    with pytest.raises(UsageProblem, match=r"one of .*fold-batch-norm.*got fold-batchnorm"):
        require_known_names(recipe)
    with pytest.raises(UsageProblem, match=r"^mine\.toml: .*Did you mean fold-batch-norm\?$"):
        require_known_names(recipe, None, Path("mine.toml"))


def test_a_pass_that_may_be_an_extensions_is_left_to_the_step() -> None:
    recipe = Recipe(passes=(PassChoice("ours"),), extensions=(EXTENSION,))
    require_known_names(recipe, PLAIN)


@pytest.mark.parametrize("contract", [PLAIN, NAMED])
def test_a_tolerance_of_a_wrong_name_is_reported(contract: DeliveryContract) -> None:
    with pytest.raises(UsageProblem, match=r"a dtype or an output among float64.*got flaot32"):
        require_known_names(Recipe(tolerance={"flaot32": LOOSE}), contract)


def test_without_a_contract_an_outputs_name_is_left_to_the_step() -> None:
    require_known_names(Recipe(tolerance={"scores": LOOSE}))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("lower-precision", {"dtype": "float8"}, "expected dtype to be bfloat16 or float16, got"),
        ("lower-precision", {"operators": "linear,conv"}, "expected operators to be which ones"),
        ("quantize-int8", {"keep": "0.95"}, "from 0 to 0.9, got '0.95'"),
        ("quantize-int8", {"activations": "both"}, "static-sums or dynamic, got 'both'"),
        ("prune-low-influence", {"share": "2"}, "got '2'"),
        ("fold-batch-norm", {"share": "1"}, r"expected the parameters \(none\), got share"),
    ],
)
def test_a_wrong_parameter_is_reported_before_anything_is_started(
    name: str, wrong: dict[str, str], message: str
) -> None:
    given = GIVEN.get(name, {})
    require_known_names(Recipe(passes=(PassChoice(name, given),)))
    recipe = Recipe(passes=(PassChoice(name, {**given, **wrong}),))
    with pytest.raises(UsageProblem, match=message):
        require_known_names(recipe)


@pytest.mark.parametrize("share", ["0", "0.5", ".01", "1", "1e-4", "2.5e-3"])
def test_a_share_may_be_written_as_any_number(share: str) -> None:
    require_known_names(Recipe(passes=(PassChoice("prune-low-influence", {"share": share}),)))


@pytest.mark.parametrize(
    ("candidate", "milder"),
    [
        ("channels-last+int8-sums", "channels-last+int8"),
        ("channels-last+int8", "channels-last+int8-keep-10"),
        ("int8-dynamic-keep-25", "int8-dynamic-keep-50"),
        ("int8-keep-50", ""),
        ("freezing", ""),
    ],
)
def test_a_candidate_that_is_too_inexact_leads_to_one_that_keeps_more_in_float32(
    candidate: str, milder: str
) -> None:
    assert Search.milder(candidate) == milder
    assert not milder or Search(1.0, (milder,)).candidates == (milder,)
