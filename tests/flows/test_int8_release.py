"""Digits in int8: refused where it computes in float32, or loses too much; else it serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.recipe.target import host_cpu_flags, parse_target
from tests.infra.commands.test_cli import handoff

LEVEL = "cpu-avx512-vnni"
RECIPE = """
targets = ["{level}"]
[verify]
propagation = "note"
[metric]
max_drop = 0.01
[search]
seconds = 300
candidates = ["int8"]
goal = "throughput"
"""

pytestmark = [
    pytest.mark.compile, pytest.mark.server, pytest.mark.long,
    pytest.mark.skipif(
        not parse_target(LEVEL).cpu_flags <= host_cpu_flags(),
        reason=f"this machine can't run {LEVEL}",
    ),
]  # fmt: skip


def release(folder: Path, home: Path, factory: str, level: str = LEVEL) -> dict[str, Any]:
    """Deliver what a factory of the example makes, and release it; return its one target."""
    delivered = handoff(
        "deliver", f"examples.digits:{factory}", "--to", str(folder / factory), home=home
    )
    assert delivered.returncode == 0, delivered.stderr
    assert "top-1 of 800 samples is 0.97 by the model itself" in delivered.stdout
    recipe = folder / f"{level}.toml"
    recipe.write_text(RECIPE.format(level=level), encoding="utf-8")
    arguments = ("release", str(folder / factory), "--recipe", str(recipe), "--json")
    result = handoff(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    (target,) = json.loads(result.stdout)["targets"]
    assert isinstance(target, dict)
    return target


def tried(target: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in target["candidates"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def test_int8_is_served_where_the_metric_is_kept_and_not_where_it_is_lost(tmp_path: Path) -> None:
    home = tmp_path / "home"
    target = release(tmp_path, home, "build")
    int8 = tried(target, "int8")
    assert int8["accepted"]
    assert int8["size_bytes"] < 0.85 * tried(target, "plain")["size_bytes"]
    assert int8["metric"]["decides"]
    assert 0.0 < int8["metric"]["high"] <= 0.01
    (moved,) = int8["effects"]
    # The first convolution has one channel, and stays.
    assert "4 of 4 layers compute in int8" in moved["notes"]

    lost = tried(release(tmp_path, home, "miscalibrated"), "int8")
    assert not lost["accepted"]
    (reason,) = lost["reasons"]
    assert reason.startswith("metric: top-1 of 800 samples is 0.97 by eager and 0.9")
    assert "more than the recipe allows: 0.0100 is agreed" in reason


def test_a_level_that_would_compute_in_float32_is_refused_for_that(tmp_path: Path) -> None:
    (reason,) = tried(release(tmp_path, tmp_path / "home", "build", "cpu-avx512"), "int8")[
        "reasons"
    ]
    assert "int8 isn't for cpu-avx512" in reason
    assert "Name cpu-avx512-vnni" in reason
