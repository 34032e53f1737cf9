"""Fingerprint: one digest for everything that a release is made from."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

from artifacts.digest import Digest, digest_bytes, digest_file, digest_tree
from artifacts.recipe import Recipe
from artifacts.record import to_plain


def fingerprint_release(delivery: Digest, recipe: Recipe, compiler: str) -> Digest:
    """Return what stands for a release's inputs: delivery, recipe, targets, toolchain, our code."""
    root = Path(__file__).parent.parent
    sources = [path for room in ("artifacts", "tasks") for path in (root / room).rglob("*.py")]
    code = digest_tree({path.relative_to(root).as_posix(): digest_file(path) for path in sources})
    banner = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    plain = {
        "delivery": delivery,
        "recipe": to_plain(recipe),
        "targets": [target.slug for target in recipe.resolved_targets()],
        "torch": version("torch"),
        "compiler": banner.stdout,
        "code": code,
    }
    return digest_bytes(json.dumps(plain, sort_keys=True).encode())
