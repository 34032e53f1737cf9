"""The recipes of `examples/recipes`: each releases a model of the kind that it is for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.commands.test_cli import handoff

pytestmark = [
    pytest.mark.demo, pytest.mark.compile, pytest.mark.server, pytest.mark.long,
    pytest.mark.timeout(3000),
]  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("recipe", "factory", "targets"),
    [
        ("vision", "examples.resnet18:build", ["cpu-avx512"]),
        ("recommender", "examples.user_model:build", ["cpu-avx2"]),
        ("int8", "examples.digits:build", ["cpu-avx512-vnni"]),
        ("fleet", "examples.user_model:build", ["cpu-avx2", "cpu-avx512", "cuda-sm80"]),
    ],
)
def test_a_recipe_releases_what_it_is_for(
    recipe: str, factory: str, targets: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "delivery"
    made = handoff("deliver", factory, "--to", str(folder), "--yes", home=tmp_path, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    path = ROOT / "examples" / "recipes" / f"{recipe}.toml"
    result = handoff("release", str(folder), "--recipe", str(path), "--json", home=tmp_path)
    assert result.returncode == 0, result.stderr
    released = {target["slug"]: target for target in json.loads(result.stdout)["targets"]}
    assert sorted(released) == sorted(targets)
    for slug, target in released.items():
        assert target["accepted"] or slug.startswith("cuda-"), slug
        searched = [one["name"] for one in target["candidates"] if one["accepted"]]
        assert recipe == "fleet" or len(searched) > 1, "more than the plain one"
