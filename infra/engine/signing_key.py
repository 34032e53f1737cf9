"""The key that signs here, as the signing process knows it: no other may read its private half."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.host import SigningKey
from handoff.infra.engine.child import StepProcess
from handoff.tasks.registry.messages import KeyJob, KeyResult
from handoff.tasks.registry.transitions import SIGNER


def will_be_created(key: SigningKey) -> bool:
    """Return whether there is no such key yet, and the first release would make it."""
    return key.make_missing and not Path(key.uri).exists() and not key.public.exists()


def ask_signer(
    key: SigningKey, trusted: Sequence[str] | None = None, *, makes: bool = False
) -> KeyResult:
    """Return the key's id and its public half; with `makes` it is made where there is none.

    Raises `KeyUnusable` for one that can't be used, or is not among those `trusted`, if any are
    given.
    """
    with (
        tempfile.TemporaryDirectory(prefix="handoff-log-") as logs,
        closing(StepProcess(SIGNER, Path(logs) / "sign.log")) as signer,
    ):
        requested = replace(key, make_missing=makes and key.make_missing)
        return signer.run(KeyJob(requested, None if trusted is None else tuple(trusted)))
