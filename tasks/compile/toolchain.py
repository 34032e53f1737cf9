"""What packages are made with today, and what a version was made with that isn't so any more.

A conformance table is about the same: torch, triton, the compiler, the target and its options.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from handoff.artifacts.digest import Digest
from handoff.artifacts.recipe.compatibility import base_version
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CpuTarget
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.compile.fingerprint import compiler_banner


def toolchain_today(compiler: str) -> dict[str, str]:
    """Return what a package would be built with today, by the names that records use."""
    return {
        "torch": base_version(version("torch")),
        "compiler": (compiler_banner(compiler).splitlines() or [""])[0],
        "glibc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


def changes_since(
    manifest: Manifest, delivery: Digest, recipe: Recipe, compiler: str
) -> tuple[str, ...]:
    """Return what differs from what a version was made from, as far as its record says.

    It is for what has another fingerprint: where nothing of the record differs, our code does.
    """
    now = toolchain_today(compiler)
    changes = [] if delivery == manifest.delivery else ["the delivery"]
    changes += [
        f"{name} {recorded} is now {now[name]}"
        for name, value in manifest.toolchain.items()
        if name in now
        and (recorded := base_version(value) if name == "torch" else value) != now[name]
    ]
    if recipe != manifest.recipe:
        changes.append("the recipe")
    if [target.slug for target in manifest.targets] != [t.slug for t in recipe.resolved_targets()]:
        changes.append("the targets")
    # The record doesn't name the code: it is what is left.
    return tuple(changes) or ("Handoff itself",)


def conformance_toolchain(
    compiler: str, target: CpuTarget, options: Mapping[str, object]
) -> dict[str, str]:
    """Return today's toolchain for packages of `target` with `options`, without importing torch."""
    today = toolchain_today(compiler)
    return {
        "torch": today["torch"],
        "triton": _installed_version("triton"),
        "compiler": today["compiler"],
        "target": target.slug,
        "options": json.dumps({name: str(value) for name, value in sorted(options.items())}),
    }


def _installed_version(package: str) -> str:
    try:
        return base_version(version(package))
    except PackageNotFoundError:
        return "none"
