"""A registry for every test of a step that reaches one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture
def local(tmp_path: Path) -> SomeRegistry:
    """An empty registry in a folder."""
    return some_registry(tmp_path)
