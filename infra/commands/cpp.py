"""`handoff cpp`: what a compiler, CMake or pkg-config is given to build a program of one's own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from handoff.artifacts.errors import EnvironmentLacking
from handoff.infra.terminal.output import echo

Tool = Literal["compiler", "cmake", "pkg-config"]

PACKAGE = Path(__file__).parents[1] / "runner" / "package"


def print_options(tool: Tool) -> None:
    """Print what to give to a tool, as one line of words.

    Raises `EnvironmentLacking` where torch isn't installed.
    """
    torch = _torch_folder()
    options = {
        "compiler": lambda: _compiler_options(torch),
        "cmake": lambda: [f"-DHandoff_DIR={PACKAGE}", f"-DHandoff_TORCH={torch}"],
        "pkg-config": lambda: [f"--define-variable=torch={torch}", str(PACKAGE / "handoff.pc")],
    }
    echo(" ".join(options[tool]()))


def _compiler_options(torch: Path) -> list[str]:
    api = torch / "include" / "torch" / "csrc" / "api" / "include"
    return [
        "-std=c++20", f"-I{PACKAGE / 'include'}",
        "-isystem", str(torch / "include"), "-isystem", str(api), str(PACKAGE / "handoff.cpp"),
        f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-Wl,--no-as-needed",
        "-ltorch", "-ltorch_cpu", "-lc10", "-lpthread", "-ldl",
    ]  # fmt: skip


def _torch_folder() -> Path:
    """Return where torch's `include` and `lib` lie, without importing it, which takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise EnvironmentLacking(
            "a program is compiled with torch's headers",
            expected="torch in Handoff's environment", got="none",
            remedy="Install the version that the releases were built with",
        )  # fmt: skip
    return Path(spec.origin).parent
