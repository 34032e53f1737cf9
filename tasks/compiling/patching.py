"""Replaces an attribute of torch's for as long as a compilation takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner.name` be `value` in the body, and what it was afterwards.

    Raises `AttributeError` where there is none: what is replaced has to be there.
    """
    missing = object()
    own = vars(owner).get(name, missing)
    getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
