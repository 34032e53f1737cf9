"""A small network, delivered and released once for a module's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.small_delivery import FACTORY
from tests.infra.commands.test_cli import handoff


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training side's folder, with a delivery of a small network in `delivery`."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "small.py").write_text(FACTORY)
    result = handoff(
        "deliver", "small:build", "--to", "delivery", "--name", "small", home=folder, cwd=folder
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def home(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the small network was released once."""
    folder = tmp_path_factory.mktemp("home")
    result = handoff("release", str(training / "delivery"), "--json", home=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    (folder / "released.json").write_text(result.stdout)
    return folder
