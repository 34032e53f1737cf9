"""Releases whose packages write to a file when they are opened, so that it is known who was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile, TargetRecord
from handoff.artifacts.release.signing import sign_statement
from handoff.artifacts.release.statement import RELEASE_FILE, release_statement
from tests.artifacts.samples import SampleKey, sample_key, sample_manifest, sample_target
from tests.limits import LIMIT_S

# The variable that names the file which an opened package writes its name to.
CANARY = "HANDOFF_TEST_CANARY"
SOURCE = """
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void sing() {
  if (const char* path = std::getenv("HANDOFF_TEST_CANARY")) {
    std::FILE* file = std::fopen(path, "a");
    std::fputs(WORD "\\n", file);
    std::fclose(file);
  }
}
"""
BEST, OTHER = "cpu-avx512", "cpu-avx2"


@cache
def canary_library(word: str, folder: Path) -> bytes:
    """Return a shared library that writes `word` when it is opened, built in `folder`."""
    source, made = folder / f"{word}.cpp", folder / f"{word}.so"
    source.write_text(SOURCE.replace("WORD", f'"{word}"'))
    command = ["g++", "-shared", "-fPIC", "-o", str(made), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return made.read_bytes()


def canary_package(library: bytes, place: Path) -> bytes:
    """Return a `.pt2` around the library, as torch writes it to `place`."""
    writer = torch._C.PyTorchFileWriter(str(place))
    for name, data in {
        "data/aotinductor/model/it.wrapper.so": library,
        "data/aotinductor/model/it.wrapper_metadata.json": b'{"AOTI_DEVICE_KEY": "cpu"}',
        "archive_format": b"pt2",
        "archive_version": b"0",
    }.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return place.read_bytes()


@dataclass(frozen=True)
class Pulled:
    """A pulled release for two targets that run here, whose packages are canaries."""

    folder: Path
    manifest: Manifest
    version: int

    @property
    def best(self) -> Path:
        """The folder of the target that `auto` is."""
        return self.folder / BEST

    @property
    def envelope(self) -> Path:
        """The file with the signature."""
        return self.folder / RELEASE_FILE

    def change_statement(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Sign another statement with the good key."""
        statement = _statement(self.manifest, self.version)
        change(statement)
        self.envelope.write_bytes(sign_statement(statement, sample_key().signer))

    def release_with(self, name: str, data: bytes) -> None:
        """Release other bytes for a file of the best target, signed with the good key."""
        path = f"{BEST}/{name}"
        (self.folder / path).write_bytes(data)
        other = PackageFile(path, digest_bytes(data), len(data))
        targets = tuple(
            replace(t, files=tuple(other if file.path == path else file for file in t.files))
            for t in self.manifest.targets
        )
        write_record(self.folder, replace(self.manifest, targets=targets), self.version)


def _statement(manifest: Manifest, version: int) -> dict[str, Any]:
    parts = digest_bytes(b"parts")
    return release_statement(manifest, version, parts=parts, evidence={}, pipeline="1.2.3")


def write_record(
    folder: Path, manifest: Manifest, version: int, key: SampleKey | None = None
) -> None:
    """Write the manifest and its signature."""
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    signed = sign_statement(_statement(manifest, version), (key or sample_key()).signer)
    (folder / RELEASE_FILE).write_bytes(signed)


def pull_canaries(
    folder: Path, built: Path, *, model: str = "toy", version: int = 3, word: str = "released"
) -> Pulled:
    """Write a signed release whose packages write `word`; `built` keeps what g++ made."""
    # Other bytes each time: a process opens the same ones once.
    library = canary_library(word, built) + os.urandom(16)
    files = {"model.so": library}
    records: list[TargetRecord] = []
    for slug, flags in ((OTHER, ("fpu",)), (BEST, ("fpu", "sse2"))):
        place = folder / slug
        place.mkdir(parents=True)
        files["model.pt2"] = canary_package(library + slug.encode(), place / "model.pt2")
        own = {name: data + slug.encode() * (name == "model.so") for name, data in files.items()}
        target = sample_target(slug, flags=flags)
        assert target.fit is not None
        fit = replace(target.fit, torch=torch.__version__)
        records.append(replace(target, fit=fit, files=_write(folder, slug, own)))
    x = {"0/inputs/x": torch.zeros(2, 8), "0/outputs/0": torch.zeros(2, 4)}
    shared = _write(folder, "", {"examples.safetensors": save(x)})
    manifest = replace(sample_manifest(*records, model=model), files=shared)
    write_record(folder, manifest, version)
    return Pulled(folder, manifest, version)


def _write(folder: Path, slug: str, files: Mapping[str, bytes]) -> tuple[PackageFile, ...]:
    records = []
    for name, data in files.items():
        path = f"{slug}/{name}" if slug else name
        (folder / path).write_bytes(data)
        records.append(PackageFile(path, digest_bytes(data), len(data)))
    return tuple(records)
