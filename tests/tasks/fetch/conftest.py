"""A delivery in a folder, and where one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.fetch.samples import write_files


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    return write_files(tmp_path / "delivery")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Where the delivery goes, in a folder where litter shows."""
    (tmp_path / "fetched").mkdir()
    return tmp_path / "fetched" / "new"
