"""What a table is about: torch, triton, the compiler, the target and the compiler's options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from handoff.artifacts.recipe.target import CpuTarget, base_version
from handoff.tasks.compile.toolchain import toolchain_today


def conformance_toolchain(
    compiler: str, target: CpuTarget, options: Mapping[str, object]
) -> dict[str, str]:
    """Return today's toolchain for packages of `target` with `options`, without importing torch."""
    today = toolchain_today(compiler)
    return {
        "torch": today["torch"],
        "triton": _installed("triton"),
        "compiler": today["compiler"],
        "target": target.slug,
        "options": json.dumps({name: str(value) for name, value in sorted(options.items())}),
    }


def _installed(package: str) -> str:
    try:
        return base_version(version(package))
    except PackageNotFoundError:
        return "none"
