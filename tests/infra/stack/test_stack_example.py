"""What `.env.example` says to run makes the secrets that compose asks for, and keys that fit it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.infra.stack.stack_files import STACK, example_commands, variables

_WORKER = 10001


@pytest.mark.skipif(os.geteuid() != 0, reason="the key is given to another user")
@pytest.mark.parametrize("umask", ["022", "077"])
def test_its_commands_make_keys_that_the_workers_can_read(umask: str, tmp_path: Path) -> None:
    script = f"umask {umask}\n{example_commands()}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    made = set(re.findall(r"(?m)^([A-Z0-9_]+)=\w{48}$", done.stdout))
    required = {
        n
        for n in variables((STACK / "compose.yaml").read_text("utf-8"))
        if re.search(r"PASSWORD|SECRET", n)
    }
    assert made == required
    private, public = (tmp_path / "secrets" / n for n in ("signing.pem", "trusted/release.pub"))
    assert (private.stat().st_uid, private.stat().st_mode & 0o777) == (_WORKER, 0o400)
    for place in (public, public.parent, public.parents[1]):
        assert place.stat().st_mode & 0o004, f"others can't read {place.name}"
