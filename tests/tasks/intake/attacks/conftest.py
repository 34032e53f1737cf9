"""A good delivery, for each attack to be planted in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tasks.intake.models import deliver_case


@pytest.fixture(scope="package")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "delivery"
    deliver_case("attention", folder)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "delivery"))
