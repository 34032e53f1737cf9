"""Which of Handoff's extras brings a package that isn't installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

from handoff.artifacts.errors import EnvironmentLacking

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*).*; extra == ['\"]([a-z0-9]+)['\"]")
# Packages that are imported by another name than they are installed by.
_IMPORTED_AS = {"markdown-it-py": "markdown_it", "psycopg2-binary": "psycopg2"}


def lacks_extra(error: ModuleNotFoundError) -> EnvironmentLacking | None:
    """Return what is told where a package is missing that an extra brings; None for any other."""
    missing = (error.name or "").partition(".")[0]
    extra = extra_of(missing)
    if extra is None:
        return None
    return EnvironmentLacking(
        f"this needs {missing}, which isn't installed here", expected=f"handoff[{extra}]",
        got="handoff without it", remedy=f"Install it: pip install 'handoff[{extra}]', or the "
        f"wheel with [{extra}] behind its name",
    )  # fmt: skip


def extra_of(module: str) -> str | None:
    """Return the extra that brings a top-level module, None for none."""
    try:
        lines = requires("handoff") or []
    except PackageNotFoundError:
        return None
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found and _IMPORTED_AS.get(found[1], found[1].replace("-", "_")) == module:
            return found[2]
    return None
