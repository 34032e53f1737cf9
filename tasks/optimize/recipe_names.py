"""Refuses a recipe's wrong names and parameters before anything is started; without torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from handoff.artifacts.delivery.contract import DeliveryContract, read_contract
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem, did_you_mean
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import DEFAULT_TOLERANCES


def require_parameters(
    name: str, declared: Mapping[str, str], forms: Mapping[str, str], values: Mapping[str, str]
) -> None:
    """Raise `UsageProblem` unless the parameters of the pass `name` are those that it takes.

    `declared` are all that it has, each with what it means, and `forms` regular expressions that
    their values match.
    """
    if set(values) != set(declared):
        raise _parameter_problem(
            name, f"the parameters {', '.join(declared) or '(none)'}", ", ".join(values) or "none"
        )
    for parameter, form in forms.items():
        if not re.fullmatch(form, values[parameter]):
            expected = f"{parameter} to be {declared[parameter]}"
            raise _parameter_problem(name, expected, repr(values[parameter][:60]))


def _parameter_problem(name: str, expected: str, got: str) -> UsageProblem:
    return UsageProblem(
        f"the pass {name} can't be set up", expected=expected, got=got,
        remedy=f"Fix its parameters in the recipe; 'handoff passes' tells what {name} takes",
    )  # fmt: skip


_PASSES = Path(__file__).parent / "passes"
# What an output without a name is called.
_UNNAMED_OUTPUT = re.compile(r"output[0-9]+")


@dataclass(frozen=True)
class PassDeclaration:
    """What a pass says of itself: what it does, and of its parameters.

    Each of those has what it means, and `forms` of their values.
    """

    does: str
    parameters: Mapping[str, str]
    forms: Mapping[str, str]


@cache
def declared_passes() -> Mapping[str, PassDeclaration]:
    """Return our own passes by name, read off their files: to import them is to import torch.

    A pass says its name as `name: ClassVar[str] = "..."`, and so its `parameters` and `forms`.
    """
    found = {}
    for path in _PASSES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "name" in (literals := dict(_literals(node))):
                found[literals["name"]] = PassDeclaration(
                    ast.get_docstring(node) or "",
                    literals.get("parameters", {}),
                    literals.get("forms", {}),
                )
    return found


def _literals(declared: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Give the class's own names that are declared with a literal, and their values."""
    for node in declared.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.Dict):
            yield ast.unparse(node.target), ast.literal_eval(node.value)


def try_read_contract(folder: Path) -> DeliveryContract | None:
    """Return the contract in a folder; None where it can't be read, as the first step reports."""
    try:
        return read_contract(folder)
    except DeliveryUnreadable:
        return None


def require_known_names(
    recipe: Recipe, contract: DeliveryContract | None = None, file: Path | None = None
) -> None:
    """Raise `UsageProblem` for a pass, its parameters or a tolerance that are mistakes in `file`.

    With extensions a pass may be theirs, and without the delivery's contract an output's name is
    not known: what is let through here is refused by the step that needs it.
    """
    try:
        _require_known_names(recipe, contract)
    except UsageProblem as error:
        if file is not None:
            error.where = str(file)
        raise


def _require_known_names(recipe: Recipe, contract: DeliveryContract | None) -> None:
    known = declared_passes()
    wrong = [choice.name for choice in recipe.passes if choice.name not in known]
    if wrong and not recipe.extensions:
        raise UsageProblem(
            "the recipe names a pass that doesn't exist",
            expected=f"one of {', '.join(sorted(known))}", got=wrong[0][:80],
            remedy=did_you_mean(
                wrong[0], known, "Fix the name; 'handoff passes' tells what each pass does"
            ),
        )  # fmt: skip
    for choice in recipe.passes:
        if choice.name in known:
            declared = known[choice.name]
            require_parameters(choice.name, declared.parameters, declared.forms, choice.parameters)
    if contract is None:
        return
    outputs = contract.structure.output_names
    unnamed = [
        name for name in recipe.tolerance
        if name not in DEFAULT_TOLERANCES and name not in outputs
        and not _UNNAMED_OUTPUT.fullmatch(name)
    ]  # fmt: skip
    if unnamed:
        recipe.require_outputs([*outputs] or ["output0, output1 and so on"])
