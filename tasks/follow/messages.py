"""What is asked of the process that tries a release before a serving process opens it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from handoff.artifacts.record import Job


@dataclass(frozen=True)
class TryReleaseResult:
    """How many examples it was called on, each of whose outputs was as the original model's."""

    examples: int


@dataclass(frozen=True)
class TryReleaseJob(Job[TryReleaseResult]):
    """Open the package for `target` in a pulled `folder`, call it on its examples, and compare.

    `keys` are the paths of the public keys of which one has to have signed it, `model` and
    `version` what it has to be. `file` is which form of it is opened (None: the usual one).
    """

    folder: Path
    keys: tuple[str, ...]
    model: str
    version: int
    target: str
    file: Literal["model.so", "model.pt2"] | None = None
