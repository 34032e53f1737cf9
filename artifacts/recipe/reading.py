"""Reads recipes from TOML, and says of a wrong one where it is wrong and what to write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import UsageProblem, did_you_mean, parse_message
from handoff.artifacts.files.strict_parsing import parse_toml
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import RecordInvalid, from_plain

# As tomllib ends a message.
_SYNTAX = re.compile(r"(?P<message>.+) \(at line (?P<line>[0-9]+), column (?P<column>[0-9]+)\)")


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in the TOML file `path`; raise `UsageProblem` with the place and reason."""
    try:
        plain = parse_toml(path.read_bytes())
        recipe = from_plain(Recipe, plain, path.name)
        _require_time(plain, path.name)
    except OSError as error:
        raise UsageProblem(
            f"the recipe {path} can't be read",
            expected="a TOML file",
            got=error.strerror or str(error),
            remedy="Name an existing recipe, or leave --recipe out for the defaults",
        ) from error
    except RecordInvalid as error:
        place, expected, got = parse_message(str(error))
        if syntax := _SYNTAX.fullmatch(got):
            raise UsageProblem(
                "the recipe is no TOML", expected="TOML", got=syntax["message"],
                remedy="Fix that line, or the one before it",
                where=f"{path}:{syntax['line']}:{syntax['column']}",
            ) from error  # fmt: skip
        key = place.removeprefix(path.name).lstrip(".")
        raise UsageProblem(
            "the recipe is not valid" + (f" at {key}" if key else ""),
            expected=expected or "a recipe in TOML",
            got=got,
            remedy=_suggest_fix(key, expected, got),
            where=str(path),
        ) from error
    recipe.require_attainable()
    return recipe


def _require_time(plain: Mapping[str, Any], name: str) -> None:
    """Raise `RecordInvalid` for a search that is described, and would not be held."""
    search = plain.get("search")
    if search and "seconds" not in search:
        keys = " and ".join(search)
        raise RecordInvalid(
            f"{name}.search: expected seconds beside {keys}, 0 for no search, got none"
        )


_ANY_GPU = re.compile(r"gpu|nvidia|cuda.*|sm_?\d+", re.IGNORECASE)


def _suggest_fix(key: str, expected: str, got: str) -> str:
    """Return what to do about a wrong entry: to write the word that was meant, if one is near."""
    word = re.fullmatch(r"'([^']{1,60})'", got)
    known = re.split(r"[ ,']+", expected)
    if key == "search" and got == "none":
        return "Write seconds = 600 under [search], which does for most models"
    if re.fullmatch(r"tolerance\.(atol|rtol|rmse_factor)", key):
        return "Write it under a dtype or an output of the model, such as [tolerance.float32]"
    if re.fullmatch(r"passes(\[\d+\]|\.\d+)?", key) and "table" in expected:
        name = word[1] if word else "fold-batch-norm"
        return f'Write each pass as [[passes]] with name = "{name}" below it'
    is_gpu = word and "cuda-sm90" in known and _ANY_GPU.fullmatch(word[1])
    if word and is_gpu and word[1].casefold() not in known:
        return (
            "Name the GPU that serves by its compute capability: cuda-sm80 is an A100, cuda-sm86 "
            "an A10, cuda-sm89 an L4 or L40S, cuda-sm90 an H100 or H200, cuda-sm100 a B200"
        )
    return did_you_mean(word[1], known, "Fix that entry") if word else "Fix that entry"


def recipe_for(folder: Path, model: str) -> Recipe:
    """Return the recipe in `folder/MODEL.toml`, else the defaults; raise `UsageProblem`."""
    path = folder / f"{model}.toml"
    return read_recipe(path) if path.exists() else Recipe()
