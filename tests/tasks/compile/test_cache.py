"""Compiled once: the same bytes again, the same code for other weights, no wrong package."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.digest import digest_bytes, digest_file
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.compile.caching.cache import (
    PackageMetadata,
    find_entry,
    find_reusable_part,
    keep_entry,
    read_entry,
    take_entry,
)
from handoff.tasks.compile.messages import CompileJob, CompileResult
from handoff.tasks.compile.packages import write_package
from handoff.tasks.compile.weights import WeightSlot
from handoff.tasks.compile.workdir import private_cache_folder
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.loading import open_package, open_shared_library
from tests.limits import LIMIT_S
from tests.shared_tools import share_built
from tests.tasks.optimize.passes.exporting import export

pytestmark = pytest.mark.compile
TARGET = native_cpu_target()


class Scorer(nn.Module):
    """Weights of every awkward kind: one element, few, tied, uniform at first, never delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.slope, self.norm = nn.PReLU(), nn.LayerNorm(8)
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 8), persistent=False)
        self.shift: Tensor
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.slope(self.first(x)) * self.scale)
        return torch.cat([self.second(y), x[:, :3] + self.shift], 1)


def trained(seed: int) -> Scorer:
    torch.manual_seed(seed)
    module = Scorer()
    with torch.no_grad():
        for tensor in (*module.parameters(), module.shift):
            tensor.normal_()
    return module


class Builder:
    """Compiles modules in one compiler process, with one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder / "builds" / "workspace", 0
        share_built(self.folder.parent)
        self.processes = Processes(self.folder, Recipe(targets=(TARGET.slug,)), delivery=folder)
        self.processes.tools(TARGET).result(LIMIT_S)
        assert self.processes.jobs.cache is not None
        self.cache = self.processes.jobs.cache

    def build(
        self, module: nn.Module, *, fresh: bool = False, **options: object
    ) -> tuple[Path, CompileResult]:
        self.count += 1
        program = self.folder / f"program-{self.count}.pt2"
        torch.export.save(export(module, torch.randn(5, 8)), program)
        folder = self.folder / f"package-{self.count}"
        jobs = self.processes.jobs
        job = CompileJob(program, TARGET, folder, options, self.cache, fresh, jobs.shared)
        result = self.processes.compiler(TARGET).run(job, limit_s=LIMIT_S)
        return folder, result


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    made = Builder(tmp_path_factory.mktemp("cache"))
    with made.processes:
        yield made


@dataclass(frozen=True)
class First:
    """The first build of a cache: its module, its package, and what is known of it."""

    module: Scorer
    folder: Path
    result: CompileResult


@pytest.fixture(scope="module")
def first(builder: Builder) -> First:
    torch.manual_seed(0)
    module = Scorer()
    # Asked for, so that what is kept of it is kept of a rebuild.
    return First(module, *builder.build(module, fresh=True))


def assert_right(folder: Path, module: nn.Module) -> None:
    for batch in (1, 5, 64):
        x = torch.randn(batch, 8)
        with torch.no_grad():
            want = module(x)
        for opened in (
            open_shared_library(folder / "model.so"),
            open_package(folder / "model.pt2"),
        ):
            torch.testing.assert_close(opened((x,))[0], want, rtol=1e-5, atol=1e-5)


def test_other_weights_of_a_known_graph_take_its_code(builder: Builder, first: First) -> None:
    assert first.result.reused == ""
    module = trained(1)
    folder, result = builder.build(module)
    assert result.reused == "code"
    assert_right(folder, module)


@pytest.mark.long
def test_weights_behind_the_library_are_known_as_well(builder: Builder) -> None:
    # As torch does it on its own above 2 GB.
    behind = {"aot_inductor.force_mmap_weights": True}
    first, built = builder.build(trained(7), **behind)
    assert built.reused == ""
    module = trained(8)
    folder, result = builder.build(module, **behind)
    assert result.reused == "code"
    assert_right(folder, module)
    again, _ = builder.build(trained(7), fresh=True, **behind)
    assert digest_file(again / "model.so") == digest_file(first / "model.so")


def test_the_same_weights_take_the_package_as_it_is(builder: Builder, first: First) -> None:
    folder, result = builder.build(first.module)
    assert result.reused == "package"
    for name in ("model.so", "model.pt2"):
        assert digest_file(folder / name) == digest_file(first.folder / name)


def test_a_rebuild_gives_the_same_bytes(builder: Builder, first: First) -> None:
    folder, result = builder.build(first.module, fresh=True)
    assert result.reused == ""
    assert [file.digest for file in result.files] == [file.digest for file in first.result.files]
    for package in (folder, first.folder):
        assert_right(package, first.module)


def test_another_process_at_another_place_gives_the_same_bytes_and_neither_place_is_in_them(
    builder: Builder, first: First, tmp_path: Path
) -> None:
    other = Builder(tmp_path)
    with other.processes:
        folder, there = other.build(first.module, fresh=True)
    assert [file.digest for file in there.files] == [file.digest for file in first.result.files]
    code = (folder / "model.so").read_bytes()
    assert str(tmp_path).encode() not in code
    assert str(builder.folder.parents[1]).encode() not in code


class Wider(Scorer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2.0


def test_another_graph_is_another_key(builder: Builder, first: First) -> None:
    module = Wider()
    folder, result = builder.build(module)
    assert result.reused == ""
    assert_right(folder, module)


class Untied(Scorer):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = nn.Parameter(torch.randn(8, 8))


def test_weights_that_are_no_longer_tied_are_compiled_anew(builder: Builder, first: First) -> None:
    module = Untied()
    folder, result = builder.build(module)
    assert result.reused == ""
    assert_right(folder, module)


def test_an_entry_that_was_tampered_with_is_not_used(builder: Builder) -> None:
    builder.build(trained(4))
    for package in builder.cache.glob("*/model.pt2"):
        data = bytearray(package.read_bytes())
        data[len(data) // 2] ^= 1
        package.write_bytes(data)
    folder, result = builder.build(trained(5))
    assert result.reused == ""
    assert_right(folder, trained(5))


def some_package(folder: Path) -> Path:
    """Write a package with a library of 300 000 bytes, of which 200 000 could be weights."""
    folder.mkdir()
    library = b"code" * 12_500 + b"\1" * 200_000 + b"tail" * 12_500
    (folder / "model.so").write_bytes(library)
    with zipfile.ZipFile(folder / "original.pt2", "w") as archive:
        archive.writestr("data/model.so", library)
        archive.writestr("data/metadata.json", "{}")
        archive.writestr(".data/serialization_id", "1")
    write_package(folder / "original.pt2", folder / "model.so", folder / "model.pt2")
    return folder


KEY = digest_bytes(b"key")
WEIGHT = {"w": torch.ones(200_000, dtype=torch.uint8)}
SLOTS = (WeightSlot("w", 50_000, 200_000),)


def test_an_entry_holds_no_weights_and_gives_the_same_bytes_with_them(tmp_path: Path) -> None:
    package, cache, taken = some_package(tmp_path / "package"), tmp_path / "cache", tmp_path / "to"
    keep_entry(cache, KEY, package, PackageMetadata({"w": "1"}, SLOTS, (), ()))
    kept = sum(file.stat().st_blocks * 512 for file in (cache / KEY.hex).iterdir())
    assert kept < 150_000
    entry = find_entry(cache, KEY)
    assert entry is not None
    taken.mkdir()
    take_entry(cache, KEY, entry, WEIGHT, taken)
    for name in ("model.so", "model.pt2"):
        assert (taken / name).read_bytes() == (package / name).read_bytes()


def test_an_entry_without_slots_holds_its_weights(tmp_path: Path) -> None:
    package, cache, taken = some_package(tmp_path / "package"), tmp_path / "cache", tmp_path / "to"
    keep_entry(cache, KEY, package, PackageMetadata({"w": "1"}, (), (), ()))
    entry = find_entry(cache, KEY)
    assert entry is not None
    taken.mkdir()
    take_entry(cache, KEY, entry, {}, taken)
    assert (taken / "model.pt2").read_bytes() == (package / "model.pt2").read_bytes()


def test_an_entry_that_was_cut_off_is_no_entry(tmp_path: Path) -> None:
    package, cache = some_package(tmp_path / "package"), tmp_path / "cache"
    keep_entry(cache, KEY, package, PackageMetadata({}, (), (), ()))
    assert find_entry(cache, KEY) is not None
    (cache / KEY.hex / "entry.json").write_text("{")
    assert find_entry(cache, KEY) is None


def test_looking_into_the_cache_leaves_it_as_it_is(tmp_path: Path) -> None:
    package, cache = some_package(tmp_path / "package"), tmp_path / "cache"
    keep_entry(cache, KEY, package, PackageMetadata({"w": "1"}, (), (), ()))
    file = cache / KEY.hex / "entry.json"
    os.utime(file, (1.0, 1.0))
    entry = read_entry(cache, KEY)
    assert entry is not None
    assert file.stat().st_mtime == 1.0
    assert (find_reusable_part(entry, {"w": "1"}), find_reusable_part(entry, {"w": "2"})) == (
        "package",
        "",
    )
    (cache / KEY.hex / "model.pt2").write_bytes(b"other")
    assert read_entry(cache, KEY) is None
    assert file.exists()
    assert find_entry(cache, KEY) is None
    assert not file.exists()


def test_a_compilation_has_a_private_folder_that_is_gone_afterwards() -> None:
    with private_cache_folder() as place:
        assert not list(place.iterdir())
        assert place.stat().st_mode & 0o077 == 0
        (place / "left").write_text("over")
        with private_cache_folder() as other:
            assert other != place
    assert not place.exists()
