"""Environments with other versions of torch, made by uv once and kept: as large as torch is.

Each is found again by its version; what else torch asks for is what the index held when it was
made, and is listed beside it. The index, its keys and a proxy are uv's own settings (`UV_*`, and
its files): `UV_TORCH_BACKEND=cpu` takes PyTorch's builds without CUDA where its index can be
reached.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from importlib.metadata import version as installed_version
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.recipe.compatibility import base_version, installed_torch
from handoff.tasks.verify.torch_versions.messages import MakeTorchJob, TorchEnvironment

# Written last: an environment with it is whole. It lists what is installed.
_LISTING = "installed"
_LIMIT_S = 3000.0
_MOST_CHARACTERS = 600


def run(job: MakeTorchJob) -> TorchEnvironment:
    """Return a Python with that torch: this one, one that was made before, or a new one.

    Raises `EnvironmentLacking` without uv, or where that version can't be had for this Python.
    """
    if base_version(installed_torch() or "") == job.version:
        return TorchEnvironment(job.version, Path(sys.executable))
    job.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = job.folder / f"{job.version}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    with lock_folder(job.folder):
        if (folder / _LISTING).exists():
            return TorchEnvironment(job.version, python)
        began = time.monotonic()
        _make_environment(job.version, folder, python)
    return TorchEnvironment(job.version, python, round(time.monotonic() - began, 1))


def find_uv() -> str | None:
    """Return the uv that lies beside this Python, or on the PATH; None without one."""
    neighbour = Path(sys.executable).with_name("uv")
    return str(neighbour) if neighbour.exists() else shutil.which("uv")


def require_uv() -> str:
    """Return uv; raise `EnvironmentLacking` without it."""
    if uv := find_uv():
        return uv
    raise EnvironmentLacking(
        "no other torch can be had here", expected="uv, which makes an environment for each",
        got="none next to this Python or on the PATH",
        remedy="Install uv (pip install uv), or leave [torch] also out of the recipe",
    )  # fmt: skip


def _make_environment(version: str, folder: Path, python: Path) -> None:
    uv = require_uv()
    shutil.rmtree(folder, ignore_errors=True)
    companions = [f"{name}=={installed_version(name)}" for name in ("safetensors", "numpy")]
    _run(version, [uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    _run(version, [uv, "pip", "install", "--quiet", "--python", str(python), f"torch=={version}",
                   *companions])  # fmt: skip
    listing = _run(version, [uv, "pip", "freeze", "--python", str(python)])
    write_atomically(folder / _LISTING, listing.encode())


def _run(version: str, command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        problem = result.stderr.strip().rstrip(".")[-_MOST_CHARACTERS:]
    except subprocess.TimeoutExpired:
        problem = f"it took more than {_LIMIT_S:g} s"
    else:
        if not result.returncode:
            return result.stdout
    raise EnvironmentLacking(
        f"an environment with torch {version} can't be made",
        expected="that version in the index that uv asks, for this Python", got=problem,
        remedy="Set uv's index (UV_INDEX_URL), or ask for another version: with --torch, or in the "
        "recipe's [torch]",
    )  # fmt: skip
