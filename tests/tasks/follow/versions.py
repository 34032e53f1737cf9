"""Versions of one recommender for tests: its code compiled once, its last layer's weights changed.

Version `k` of a shelf multiplies the scores of the first by a number, so that an answer shows which
version gave it.
"""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from handoff.artifacts.digest import digest_file
from handoff.artifacts.release.manifest import Manifest, PackageFile
from handoff.infra.engine.child import ProcessPlan
from tests.tasks.built_release import BuiltRelease, Recommender, sample_recommender
from tests.tasks.registry.registering import SomeRegistry

# Forked from what has imported torch; the product's own imports it for each version, so that a
# serving process keeps no fork server beside it.
QUICK_PLAN = ProcessPlan("try-release", preload=("intake.step",))
_CRASHES = """
__attribute__((constructor)) static void crash(void) { *(volatile int *)0 = 1; }
"""


@dataclass(frozen=True)
class Shelf:
    """A registry of versions, whose code is that of `built`."""

    registry: SomeRegistry
    built: BuiltRelease
    module: Recommender
    inputs: Mapping[str, Tensor]

    @property
    def call(self) -> tuple[Tensor, ...]:
        return tuple(self.inputs.values())

    @property
    def plain(self) -> Tensor:
        """The scores of a version of factor 1."""
        with torch.no_grad():
            scores: Tensor = self.module(*self.call)
        return scores

    def factor_of(self, scores: Tensor) -> float:
        """Return the one factor by which all of the scores were multiplied; raise for several."""
        factors = (scores / self.plain).flatten()
        middle = float(factors.median())
        torch.testing.assert_close(factors, torch.full_like(factors, middle), rtol=1e-3, atol=1e-3)
        return round(middle, 2)

    def release(
        self, factor: float = 1.0, *, golden: float | None = None, library: bytes | None = None,
        promoted: bool = True, **changes: object,
    ) -> int:  # fmt: skip
        """Release a version that multiplies by `factor`, and let production stand for it.

        `golden` is what its examples say that it multiplies by, `library` a `model.so` that it has
        instead, and `changes` are its manifest's.
        """
        manifest, folder = self.write(factor, golden or factor, library)
        manifest = replace(manifest, **changes)  # type: ignore[arg-type]
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
        version = self.registry.register(manifest, folder).version
        if promoted:
            self.promote(version)
        return version

    def promote(self, version: int) -> None:
        self.registry.promote(version, override=True, narrower=True, reason="a test")

    def write(self, factor: float, golden: float, library: bytes | None) -> tuple[Manifest, Path]:
        number = len(list(self.registry.root.iterdir()))
        folder, slug = self.registry.root / f"version-{number}", self.built.slug
        (folder / slug).mkdir(parents=True)
        library = library or scaled(self.built.package / "model.so", self.module, factor)
        (folder / slug / "model.so").write_bytes(library)
        archive = archived(self.built.package / "model.pt2", library)
        (folder / slug / "model.pt2").write_bytes(archive)
        inputs = {f"0/inputs/{name}": tensor for name, tensor in self.inputs.items()}
        examples = folder / "examples.safetensors"
        save_file({**inputs, "0/outputs/0": self.plain * golden}, examples)
        (record,) = self.built.manifest.targets
        files = [
            file_of(folder, file.path) for file in record.files
        ]  # fmt: skip
        manifest = replace(
            self.built.manifest,
            targets=(replace(record, files=tuple(files)),),
            files=(file_of(folder, examples.name),),
            created=f"2026-11-{1 + number % 28:02}T00:00:00+00:00",
        )
        return manifest, folder


def file_of(folder: Path, path: str) -> PackageFile:
    return PackageFile(path, digest_file(folder / path), (folder / path).stat().st_size)


def shelf_of(registry: SomeRegistry, built: BuiltRelease) -> Shelf:
    return Shelf(registry, built, *sample_recommender())


def scaled(library: Path, module: Recommender, factor: float) -> bytes:
    """Return the library with the last layer's weights multiplied."""
    data = library.read_bytes()
    for tensor in (module.head.weight, module.head.bias):
        old = tensor.detach().numpy().tobytes()
        assert data.count(old) == 1
        data = data.replace(old, (tensor.detach() * factor).numpy().tobytes())
    return data


def archived(package: Path, library: bytes) -> bytes:
    """Return the archive with another library in it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(stream, "w") as new:
        for member in old.infolist():
            is_library = member.filename.endswith(".so")
            new.writestr(
                zipfile.ZipInfo(member.filename), library if is_library else old.read(member)
            )
    return stream.getvalue()


def crashing_library(folder: Path) -> bytes:
    """Return a library that ends the process which opens it."""
    source, library = folder / "crash.c", folder / "crash.so"
    source.write_text(_CRASHES)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library.read_bytes()
