"""What the benchmark's processes tell each other, and what a precision means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from handoff.artifacts.record import from_plain, to_plain

T = TypeVar("T")

# `tf32` is float32 with TF32 allowed in products and convolutions; `float32` forbids it.
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}  # fmt: skip


@dataclass(frozen=True)
class MakeJob:
    """Make the file that `contestant` serves from: of the delivery in `folder`, at the path `to`.

    `target` is the slug that Handoff's packages are for.
    """

    contestant: str
    model: str
    precision: str
    batch: int
    device: str
    target: str
    folder: Path
    to: Path

    @property
    def delivery(self) -> Path:
        """Where the model was delivered to."""
        return self.folder / "delivery"


@dataclass(frozen=True)
class PlayJob:
    """Call everybody in turns, `runs` times, and write what was seen to the file `to`.

    `files` is what contestants serve from, and `without` are those that are left out.
    """

    model: str
    precision: str
    batch: int
    runs: int
    device: str
    folder: Path
    files: dict[str, Path]
    without: tuple[str, ...]
    to: Path

    @property
    def delivery(self) -> Path:
        """Where the model was delivered to."""
        return self.folder / "delivery"

    @property
    def opening(self) -> Path:
        """The file that names who is being opened, in case that ends the process."""
        return self.to.with_suffix(".opening")


@dataclass(frozen=True)
class PlayResult:
    """What one process saw: the seconds of the last half of its calls, by contestant.

    `apart` is the largest difference to eager's outputs, `missing` why a contestant isn't there,
    `load` the machine's right before the first timed call.
    """

    machine: str
    load: float
    seconds: dict[str, tuple[float, ...]]
    apart: dict[str, float]
    missing: dict[str, str]


def write_record(path: Path, record: object) -> None:
    """Write a record as JSON."""
    path.write_text(json.dumps(to_plain(record)), encoding="utf-8")


def read_record(kind: type[T], path: Path) -> T:
    """Return the record of this kind in the file."""
    return from_plain(kind, json.loads(path.read_text(encoding="utf-8")))


@contextmanager
def precision_of(name: str) -> Iterator[None]:
    """Allow TF32 or forbid it, as the precision says; compilers and eager both go by it."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
