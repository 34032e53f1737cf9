"""What a race was held with: the day, the code, the machine, the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from handoff.artifacts.recipe.target import host_cpu_flags, host_cpu_model

_DISTRIBUTIONS = ("torch", "onnxruntime", "openvino")
# Of /proc/cpuinfo's flags, those that products and convolutions go by.
_EXTENSIONS = (
    "amx_bf16", "amx_int8", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx512f",
    "avx2", "asimddp", "i8mm", "sve",
)  # fmt: skip
_CLONE = Path(__file__).parent


@dataclass(frozen=True)
class Conditions:
    """What one model's races were held with.

    `day` is ISO 8601. `commit` is this repository's, of the code that raced, and `built` that of
    the code that built the packages: `+changes` stands behind it where files differ from it. A
    racer computes in `threads`, and the machine lets this process have `cores`.
    """

    day: str
    commit: str
    built: str
    cpu: str
    cores: int
    threads: int
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        built = "" if self.built == self.commit else f", packages of {self.built}"
        return (
            f"{self.day}, commit {self.commit}{built}, {self.cpu}, "
            f"{self.threads} threads on {self.cores} cores, {versions}"
        )


def conditions_now(built: str, threads: int) -> Conditions:
    """Return the conditions of a race that ends now."""
    versions = {"Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return Conditions(
        f"{datetime.now(UTC):%Y-%m-%d}", commit_of_the_clone(), built,
        _cpu(), len(os.sched_getaffinity(0)), threads, versions,
    )  # fmt: skip


def _cpu() -> str:
    """Return the processor's name with what makes it fast; a virtual machine's says little."""
    has = [name for name in _EXTENSIONS if name in host_cpu_flags()]
    name = host_cpu_model() or platform.machine()
    return f"{name} with {' '.join(has)}" if has else name


def format_conditions(rows: Mapping[str, Conditions]) -> list[str]:
    """Return one line where all rows were raced alike, or else one for each kind of conditions."""
    kinds: dict[str, list[str]] = {}
    for name, conditions in rows.items():
        kinds.setdefault(str(conditions), []).append(name)
    if len(kinds) == 1:
        return [f"{kind}." for kind in kinds]
    return [f"- {kind}: {', '.join(names)}." for kind, names in kinds.items()]


def commit_of_the_clone() -> str:
    """Return this clone's commit, with `+changes` where it isn't all; `unknown` without git."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        # Pages are what this benchmark writes to.
        changes = _git("status", "--porcelain", "--", ":/", ":(exclude,top)docs")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+changes" if changes.strip() else commit


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(_CLONE), *words], capture_output=True, text=True, check=True
    ).stdout
