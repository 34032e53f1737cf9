"""A package as a function that another version of torch carries out, in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from handoff.artifacts.release.mechanics import USUAL_LIMITS
from handoff.tasks.probe.remote import RemotePackage, remote_package
from handoff.tasks.verify.torch_versions import server
from handoff.tasks.verify.torch_versions.messages import TorchEnvironment


@contextmanager
def open_in_other_torch(other: TorchEnvironment, file: Path) -> Iterator[RemotePackage]:
    """Open a `model.so` or `model.pt2` with another torch until the body ends.

    Where it doesn't load, or ends that process, its calls raise `BlessingRefused` with what the
    process said last.
    """
    assert server.__file__
    command = [
        str(other.python), "-I", server.__file__, str(file), str(torch.get_num_threads()),
    ]  # fmt: skip
    where = f"with torch {other.version}"
    with (
        tempfile.TemporaryDirectory(prefix="torch-") as workspace,
        remote_package(command, Path(workspace), where, USUAL_LIMITS.answer_s) as package,
    ):
        yield package
