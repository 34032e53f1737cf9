"""A job: what a step is asked. Its type says what the step answers, so that nobody casts."""

from __future__ import annotations

from typing import Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """The base of every step's job, by the type of its result; it holds nothing itself."""
