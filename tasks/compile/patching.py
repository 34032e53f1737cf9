"""Replaces names and environment variables of torch's for as long as a compilation takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from handoff.artifacts.errors import EnvironmentLacking


@contextmanager
def patch_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner.name` (of a module, a class or an object) be `value` until the body ends.

    Raises `EnvironmentLacking` where there is no such name: torch has moved it.
    """
    if not hasattr(owner, name):
        raise missing_internal(f"{getattr(owner, '__name__', owner)}.{name}")
    # What the owner itself holds: a static method as it stands, or nothing where it is inherited.
    attributes = vars(owner)
    is_own, before = name in attributes, attributes.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def patch_environment(names: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables until the body ends; None leaves one as it is until then.

    All are as before afterwards, also those that the body set.
    """
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: value for name, value in names.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def missing_internal(name: str) -> EnvironmentLacking:
    """Return the refusal of a torch that lacks a piece of itself that is leant on."""
    return EnvironmentLacking(
        "torch has moved a piece that compiling leans on", expected=name, got="none",
        remedy="Install the torch that this version of Handoff was made for",
    )  # fmt: skip
