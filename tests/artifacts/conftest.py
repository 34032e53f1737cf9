"""The store that a test gets: a folder, or a bucket of a real S3 server over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.store import Store
from tests.artifacts.stores.store_fixtures import s3_store


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder, or a bucket of a real S3 endpoint over HTTP; both are empty."""
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    settings: dict[str, str] = request.getfixturevalue("s3_environment")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return s3_store()
