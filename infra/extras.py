"""Which of Handoff's extras are installed, and which one brings a package that isn't."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from handoff.artifacts.errors import EnvironmentLacking

# What each extra is known by: without the first of these it wasn't asked for.
EXTRAS = {"s3": ("boto3",), "release": ("prefect", "mlflow"), "stack": ("supervisor",)}
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*).*; extra == ['\"]([a-z0-9]+)['\"]")
# Packages that are imported by another name than they are installed by.
_IMPORTED_AS = {
    "markdown-it-py": "markdown_it", "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "prometheus-flask-exporter": "prometheus_flask_exporter", "psycopg2-binary": "psycopg2",
    "scikit-learn": "sklearn",
}  # fmt: skip
# What is imported here and comes with one of an extra's packages.
_COMES_WITH = {
    "anyio": "prefect", "botocore": "boto3", "httpx": "prefect", "requests": "mlflow",
}  # fmt: skip


def lacks_extra(error: ModuleNotFoundError) -> EnvironmentLacking | None:
    """Return what is told where a package is missing that an extra brings; None for any other."""
    return lacks((error.name or "").partition(".")[0])


def require_extra(extra: str) -> None:
    """Raise `EnvironmentLacking` where what an extra is known by can't be imported."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None and (lacking := lacks(module)):
            raise lacking


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise `EnvironmentLacking`, which names the extra, where a package of one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if lacking := lacks_extra(error):
            raise lacking from error
        raise


def lacks(module: str) -> EnvironmentLacking | None:
    """Return what is told where a top-level module is missing; None unless an extra brings it."""
    extra = extra_of(module)
    if extra is None:
        return None
    return EnvironmentLacking(
        f"this needs {module}, which isn't installed here", expected=f"handoff[{extra}]",
        got="handoff without it", remedy=how_to_install(extra),
    )  # fmt: skip


def how_to_install(extra: str) -> str:
    """Return the sentence that says how an extra gets here."""
    return (
        f"Install it: pip install 'handoff[{extra}]', or the wheel with [{extra}] behind its name"
    )


def extra_of(module: str) -> str | None:
    """Return the extra that brings a top-level module, None for none.

    A wheel says of each extra all that it brings: of those that do, the one of fewest packages.
    """
    module = _COMES_WITH.get(module, module)
    required = _required()
    brought = [
        extra for extra, package in required
        if _IMPORTED_AS.get(package, package.replace("-", "_")) == module
    ]  # fmt: skip
    sizes = Counter(extra for extra, _ in required)
    return min(brought, key=lambda extra: sizes[extra], default=None)


def has_extra(extra: str) -> bool:
    """Tell whether an extra was asked for when this was installed."""
    return installed(EXTRAS[extra][0]) is not None


def missing_of(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra that aren't installed."""
    return tuple(
        package for of, package in _required() if of == extra and installed(package) is None
    )


def installed(package: str) -> str | None:
    """Return the version of an installed package from its metadata, None where it isn't."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _required() -> tuple[tuple[str, str], ...]:
    """Return each extra with each package that it brings."""
    try:
        lines = requires("handoff") or []
    except PackageNotFoundError:
        return ()
    found = (_REQUIREMENT.match(line) for line in lines)
    return tuple((match[2], match[1]) for match in found if match)
