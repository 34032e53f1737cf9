"""A recipe's wrong names are told from the recipe and the contract alone."""

from __future__ import annotations

import pytest

from handoff.artifacts.delivery.contract import DeliveryContract, ModelSection, Structure
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.recipe import PassChoice, Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.recipe_names import pass_names, require_known_names

PLAIN = DeliveryContract(ModelSection("toy"), (TensorSpec("x", "float32", (4,)),))
NAMED = DeliveryContract(
    ModelSection("toy"), (TensorSpec("x", "float32", (4,)),),
    structure=Structure(outputs=("['scores']", "['bounds'][0]")),
)  # fmt: skip
LOOSE = Tolerance(1e-2, 1e-2)
EXTENSION = "ours@sha256:" + "0" * 64


def test_the_names_that_are_read_are_those_of_the_passes() -> None:
    assert pass_names() == set(PASSES)


def test_all_passes_and_tolerances_that_there_are_pass() -> None:
    passes = tuple(PassChoice(name) for name in PASSES)
    require_known_names(Recipe(passes=passes, tolerance={"float32": LOOSE}), PLAIN)
    require_known_names(Recipe(tolerance={"output0": LOOSE}), PLAIN)
    require_known_names(Recipe(tolerance={"scores": LOOSE, "bounds_0": LOOSE}), NAMED)


def test_a_pass_that_is_nobodys_is_told_with_those_that_there_are() -> None:
    recipe = Recipe(passes=(PassChoice("fold-batchnorm"),))
    with pytest.raises(UsageProblem, match=r"one of .*fold-batch-norm.*got fold-batchnorm"):
        require_known_names(recipe)


def test_a_pass_that_may_be_an_extensions_is_left_to_the_step() -> None:
    recipe = Recipe(passes=(PassChoice("ours"),), extensions=(EXTENSION,))
    require_known_names(recipe, PLAIN)


@pytest.mark.parametrize("contract", [PLAIN, NAMED])
def test_a_tolerance_of_a_wrong_name_is_told(contract: DeliveryContract) -> None:
    with pytest.raises(UsageProblem, match=r"a dtype or an output among float64.*got flaot32"):
        require_known_names(Recipe(tolerance={"flaot32": LOOSE}), contract)


def test_without_a_contract_an_outputs_name_is_left_to_the_step() -> None:
    require_known_names(Recipe(tolerance={"scores": LOOSE}))
