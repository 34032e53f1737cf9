"""Fingerprint: one digest for everything that a release is made from."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import ArmTarget, CudaTarget
from handoff.artifacts.record import to_plain
from handoff.tasks.compile.arm.sysroot import COMPILERS, first_found
from handoff.tasks.compile.own_code import own_code


def fingerprint_release(delivery: Digest, recipe: Recipe, compiler: str) -> Digest:
    """Return what stands for a release's inputs: delivery, recipe, targets, toolchain, our code."""
    plain = {
        "delivery": delivery,
        "recipe": to_plain(recipe),
        "targets": [target.slug for target in recipe.resolved_targets()],
        "torch": _torch(),
        **_kernel_compiler(recipe),
        "compiler": compiler_banner(compiler),
        **_cross_compiler(recipe),
        "code": own_code(),
    }
    return digest_bytes(json.dumps(plain, sort_keys=True).encode())


@cache
def _torch() -> str:
    """Return torch's version, which is read off a file of some kilobytes."""
    return version("torch")


def _kernel_compiler(recipe: Recipe) -> dict[str, str]:
    """Return the version of what compiles GPU kernels, where the recipe asks for any."""
    if not any(isinstance(target, CudaTarget) for target in recipe.resolved_targets()):
        return {}
    try:
        return {"triton": version("triton")}
    except PackageNotFoundError:
        return {"triton": ""}


def _cross_compiler(recipe: Recipe) -> dict[str, str]:
    """Return what compiles for ARM64 here, where the recipe asks for that."""
    targets = recipe.resolved_targets()
    if not any(isinstance(target, ArmTarget) and target.is_emulated for target in targets):
        return {}
    found = first_found(COMPILERS)
    return {"cross compiler": compiler_banner(found) if found else ""}


@cache
def compiler_banner(compiler: str) -> str:
    """Return what the compiler says of its version."""
    told = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    return told.stdout
