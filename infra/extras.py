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
_IMPORT_NAMES = {
    "markdown-it-py": "markdown_it", "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "prometheus-flask-exporter": "prometheus_flask_exporter", "psycopg2-binary": "psycopg2",
    "scikit-learn": "sklearn",
}  # fmt: skip
# What is imported here and comes with one of an extra's packages.
_BROUGHT_BY = {
    "anyio": "prefect", "botocore": "boto3", "httpx": "prefect", "requests": "mlflow",
}  # fmt: skip


def missing_extra_error(error: ModuleNotFoundError) -> EnvironmentLacking | None:
    """Return the error of a missing package that an extra brings; None for any other."""
    return missing_package_error((error.name or "").partition(".")[0])


def require_extra(extra: str) -> None:
    """Raise `EnvironmentLacking` where what an extra is known by can't be imported."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None and (error := missing_package_error(module)):
            raise error


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raise `EnvironmentLacking`, which names the extra, where a package of one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if extra_error := missing_extra_error(error):
            raise extra_error from error
        raise


def missing_package_error(module: str) -> EnvironmentLacking | None:
    """Return the error of a missing top-level module; None unless an extra brings it."""
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
    module = _BROUGHT_BY.get(module, module)
    requirements = _extra_requirements()
    candidates = [
        extra for extra, package in requirements
        if _IMPORT_NAMES.get(package, package.replace("-", "_")) == module
    ]  # fmt: skip
    sizes = Counter(extra for extra, _ in requirements)
    return min(candidates, key=lambda extra: sizes[extra], default=None)


def has_extra(extra: str) -> bool:
    """Return whether an extra was asked for when this was installed."""
    return installed_version(EXTRAS[extra][0]) is not None


def missing_packages(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra that aren't installed."""
    return tuple(
        package
        for name, package in _extra_requirements()
        if name == extra and installed_version(package) is None
    )


def installed_version(package: str) -> str | None:
    """Return the version of an installed package from its metadata, None where it isn't."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extra_requirements() -> tuple[tuple[str, str], ...]:
    """Return each extra with each package that it brings."""
    try:
        lines = requires("handoff") or []
    except PackageNotFoundError:
        return ()
    matches = (_REQUIREMENT.match(line) for line in lines)
    return tuple((match[2], match[1]) for match in matches if match)
