"""The first release's page is what happens to a newcomer: its blocks are run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_blocks, blocks_of
from tests.docs.running import run_blocks

PAGE = ROOT / "docs" / "first-release.md"


@pytest.mark.demo
@pytest.mark.timeout(1800)
@pytest.mark.long
def test_the_walk_ends_with_the_versions_that_it_says(tmp_path: Path) -> None:
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    walked = [block for block in blocks_of(PAGE) if block.kind in ("file", "walk")]
    further = [b for b in all_blocks() if (b.kind, b.argument) == ("walk-on", PAGE.name)]
    assert len(further) >= 1
    ran = run_blocks([*walked, *further], tmp_path, limit_s=1700)
    output = ran.stdout
    assert ran.returncode == 0, output + ran.stderr
    assert "mymodel: production points to version 1" in output
    assert "mymodel: production points to version 2 (was 1)" in output
    assert "times as fast as what it replaces" in output
    assert "mymodel version 2: cpu-" in output
    assert "torch.Size([3, 4])" in output
    assert "mymodel: production points to version 1 (was 2)" in output
    assert "5 entries, each signed, none missing" in output
    assert "worse than it looked" in output
