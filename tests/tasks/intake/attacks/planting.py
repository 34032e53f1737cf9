"""How an attack is planted in a delivery, and what has to become of it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in


class Canary:
    """A pickle of this writes a file when it is loaded the official way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def refuse(folder: Path, match: str) -> DeliveryUnreadable:
    canary = folder.parent / "canary"
    with pytest.raises(DeliveryUnreadable, match=match) as caught:
        take_in(IntakeJob(folder, folder.parent / "staging"))
    assert not canary.exists()
    assert not (folder.parent / "staging").exists()
    assert caught.value.remedy
    return caught.value


def rewrite_source(folder: Path, old: str, new: str) -> range:
    """Replace the first `old` in module.py by `new`; return the numbers of the lines it covers."""
    path = folder / "module.py"
    before, found, after = path.read_text().partition(old)
    assert found
    path.write_text(before + new.replace("CANARY", str(folder.parent / "canary")) + after)
    first = before.count("\n") + 1
    return range(first, first + new.count("\n") + 1)


def rewrite_pickle(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace `data.pkl` of an archive, with everything else as torch wrote it."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, change(data) if name.endswith("/data.pkl") else data)
