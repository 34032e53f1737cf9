"""Lines of the training side's code, and of module.py: which one is running, and as written."""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import torch.fx

Line = tuple[str, int]

# Code in these folders runs for somebody else's line.
_FOLDERS = [Path(file).parent for file in (torch.__file__, logging.__file__, __file__)]
_INNER = (*(f"{folder}{os.sep}" for folder in _FOLDERS), "<")
# Ours as a whole, and what was installed: neither is where a person looks for a mistake.
_HANDOFF = f"{Path(__file__).parents[3]}{os.sep}"
_INSTALLED = tuple(
    f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
_TRACE_LINE = re.compile(r'File "([^"]+)", line ([0-9]+)')


def current_user_line() -> Line | None:
    """Return file and line of the innermost running code that is neither torch's nor ours.

    A line of an installed library's counts where there is no other, and one of Python's own never.
    """
    library: Line | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_code(file) and not file.startswith(_INSTALLED):
            return file, frame.f_lineno
        if library is None and is_user_code(file) and "-packages" in file:
            library = file, frame.f_lineno
        frame = frame.f_back
    return library


def find_calling_line(functions: re.Pattern[str], run: Callable[[], object]) -> Line | None:
    """Return the line that first calls a function of torch's while `run` does, or None.

    Functions are matched as `file:name`. What `run` raises ends it, and is reported elsewhere.
    """
    found: list[Line | None] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and not found:
            code = frame.f_code
            if functions.search(f"{code.co_filename}:{code.co_name}"):
                found.append(current_user_line())

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        with contextlib.suppress(Exception):
            run()
    finally:
        sys.setprofile(before)
    return found[0] if found else None


def is_outside_torch_and_capture(file: str) -> bool:
    """Return whether a file's code is neither torch's nor this folder's."""
    return not file.startswith(_INNER)


def raising_line(error: BaseException) -> Line | None:
    """Return the innermost line of the training side's own code that `error` came through.

    A line of an installed library's counts where there is no other.
    """
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.lineno is not None and is_user_code(frame.filename)
    ]
    user_lines = [line for line in lines if not line[0].startswith(_INSTALLED)]
    return next(reversed(user_lines or lines), None)


def quote_line(line: Line | None) -> str:
    """Return what is written on a line, in backquotes and with a colon; '' where it isn't known."""
    text = linecache.getline(*line).strip() if line else ""
    return f"`{text}`: " if text else ""


def one_line(error: BaseException) -> str:
    """Return the error's class and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__


def is_user_code(file: str) -> bool:
    """Return whether a file's code is the training side's, or a library's that they use."""
    return is_outside_torch_and_capture(file) and not file.startswith(_HANDOFF)


def last_trace_line(trace: str) -> Line | None:
    """Return the innermost line in a written stack trace that is neither torch's nor ours."""
    return next(reversed(parse_trace_lines(trace)), None)


def parse_trace_lines(trace: str) -> list[Line]:
    """Return the lines in a written stack trace that are neither torch's nor ours, in order."""
    found = [(file, int(number)) for file, number in _TRACE_LINE.findall(trace)]
    return [line for line in found if is_user_code(line[0])]


def format_line(line: Line) -> str:
    """Return a line as `package/module.py:12`, without the folders of the machine it lies on."""
    file, number = line
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file and name != "__main__":
            last = "/__init__.py" if Path(file).name == "__init__.py" else ".py"
            return f"{name.replace('.', '/')}{last}:{number}"
    return f"{Path(file).name}:{number}"


def node_location(node: torch.fx.Node) -> str:
    """Return `module.py:12`, or `module.py:12 (models/net.py:40)`."""
    line = node.meta.get("module_line")
    location = "module.py" if line is None else f"module.py:{line}"
    source = node.meta.get("source_line")
    return location if source is None else f"{location} ({source})"
