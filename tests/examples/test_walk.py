"""The README's walk through the registry is what happens: its commands are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.test_cli import share_programs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.demo
def test_the_readmes_walk_ends_with_the_version_that_it_says(tmp_path: Path) -> None:
    model = re.search(r"```python\n# mymodel.py\n(.*?)```", README, re.DOTALL)
    walk = re.search(r"<!-- walk: begin -->\n```sh\n(.*?)```", README, re.DOTALL)
    assert model is not None
    assert walk is not None
    (tmp_path / "mymodel.py").write_text(model[1])
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program in ("python", "handoff"):
        # As a script, since Python finds its packages by where it is started from.
        script = tmp_path / ".venv" / "bin" / program
        script.write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name(program)} "$@"\n')
        script.chmod(0o755)
    home = tmp_path / "home"
    share_programs(home)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "AWS_", "MLFLOW"))}
    before = (
        ".venv/bin/handoff deliver mymodel:build --to delivery --name mymodel\n"
        ".venv/bin/handoff release delivery\n"
    )
    walked = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", before + walk[1]],
        cwd=tmp_path,
        env={**kept, "HANDOFF_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert walked.returncode == 0, walked.stdout + walked.stderr
    assert "mymodel: production stands for version 2, and was 1" in walked.stdout
    assert "times as fast as what it replaces" in walked.stdout
    assert "mymodel version 2: cpu-" in walked.stdout
    assert "torch.Size([3, 4])" in walked.stdout
    assert "mymodel: production stands for version 1, and was 2" in walked.stdout
    assert "5 entries, signed and in one chain" in walked.stdout
    assert "worse than it looked" in walked.stdout
