"""The recipes of a machine: one file a model, for releases that don't bring their own."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.recipe.recipe import Recipe, read_recipe


def recipe_for(folder: Path, model: str) -> Recipe:
    """Return the recipe in `folder/MODEL.toml`, else the defaults; raise `UsageProblem`."""
    path = folder / f"{model}.toml"
    return read_recipe(path) if path.exists() else Recipe()
